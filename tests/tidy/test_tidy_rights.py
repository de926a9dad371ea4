"""Check that no code of a broker goes around the rights of clients."""

import ast

from tests.tidy.repository import ROOT, listed, shown, sources, tree

CREATORS = {
    "broker/handlers/topic_creation.py": "checks the rights of the client",
    "broker/coordination/internal_topics.py": "creates the topics of coordinators, as the broker",
}
"""The modules that may ask the controller for new topics, with the reason."""


def test_every_creation_of_a_topic_checks_the_rights() -> None:
    calls = {
        (shown(path), node.lineno)
        for path in sources()
        if path.is_relative_to(ROOT / "broker")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("client.create_topics")
    }
    assert {path for path, _ in calls} >= CREATORS.keys()
    offenders = [
        f"{path}:{line}: create topics through penstock.broker.handlers.topic_creation"
        for path, line in sorted(calls)
        if path not in CREATORS
    ]
    assert not offenders, listed(offenders)
