"""Check that no broker code bypasses authorization."""

import ast
import re

from penstock.broker.handlers.table import API_RIGHTS
from penstock.protocol.apis import APIS
from tests.tidy.repository import ROOT, listed, shown, sources, text, tree

CREATORS = {
    "broker/handlers/topics/topic_creation.py": "checks the rights of the client",
    "broker/coordination/internal_topics.py": "creates the topics of coordinators, as the broker",
}
"""The modules that may request new topics from the controller, with the reason."""


def test_every_topic_creation_is_authorized() -> None:
    calls = {
        (shown(path), node.lineno)
        for path in sources()
        if path.is_relative_to(ROOT / "broker")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("client.create_topics")
    }
    assert {path for path, _ in calls} >= CREATORS.keys()
    offenders = [
        f"{path}:{line}: create topics through penstock.broker.handlers.topics.topic_creation"
        for path, line in sorted(calls)
        if path not in CREATORS
    ]
    assert not offenders, listed(offenders)


def test_the_acl_reference_lists_the_rights_of_every_api() -> None:
    """Compare the table of docs/reference/acls.md with the declarations."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text(ROOT / "docs/reference/acls.md").splitlines()
        if line.startswith("| ") and line.count("|") == 4
    ]
    offenders: list[str] = []
    for key, declared in API_RIGHTS.items():
        name = APIS[key].name
        needs = " ".join(need for api, need, _ in rows if re.search(rf"\b{name}\b", api))
        requested = {operation.name.title().replace("_", "") for operation, _ in declared.rights}
        missing = sorted(right for right in requested if right not in needs)
        if missing or not needs:
            offenders.append(f"{name}: {', '.join(missing) or 'no row'}")
    assert not offenders, listed(offenders)
