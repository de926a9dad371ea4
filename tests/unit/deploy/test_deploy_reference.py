"""Generated reference pages are up to date and cover the definitions in the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kio.schema
import pytest
import typer

from penstock.broker.handlers.table import INLINE, make_handlers
from penstock.deploy.cli.app import app
from penstock.deploy.output import Format
from penstock.protocol.apis import APIS
from penstock.protocol.error_codes import ErrorCode
from tests.interop import commands
from tools.reference import cli, errors, kafka_apis, metadata_records, python_api
from tools.reference.api_evidence import EVIDENCE
from tools.reference.kafka_4_2 import KAFKA_APIS, KAFKA_PLUGIN_APIS

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("kafka-apis", kafka_apis),
        ("errors", errors),
        ("metadata-records", metadata_records),
        ("kafka-tools", commands),
        ("python-api", python_api),
    ],
)
def test_page_is_up_to_date(name: str, module: object) -> None:
    """Run `make reference` after a change."""
    assert (REFERENCE / f"{name}.md").read_text() == module.markdown()


def test_pages_of_commands_are_up_to_date() -> None:
    written = {path.name: path.read_text() for path in (REFERENCE / "cli").glob("*.md")}
    assert written == cli.pages()


def test_every_field_of_a_metadata_record_has_a_meaning() -> None:
    """Write it into the docstring of the field."""
    rows = re.findall(r"^\| \d+ \| (.+) \|$", metadata_records.markdown(), re.MULTILINE)
    assert len(rows) > 100
    assert [row for row in rows if not row.rpartition(" | ")[2].strip()] == []


def commands_of(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its name, including groups that can be run."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        full = f"{path} {name}".strip()
        if hasattr(command, "list_commands"):
            yield from commands_of(command, full)
        if getattr(command, "invoke_without_command", True):
            yield full, command


def test_every_command_has_a_heading_and_an_example() -> None:
    headings = {
        name
        for path in (REFERENCE / "cli").glob("*.md")
        for name in re.findall(r"^#+ `penstock (.+)`$", path.read_text(), re.MULTILINE)
    }
    found = dict(commands_of(typer.main.get_command(app)))
    assert len(found) > 60
    assert found.keys() - headings == set()
    without = {name for name, command in found.items() if "For example" not in command.help}
    assert without == {"broker"}  # its help is that of the node


_PRINTS_A_DOCUMENT = "prints a program, a script or a document"
_PRINTS_RECORDS = "prints records or their positions, as text or one JSON object per line"
_RUNS = "runs a process until it is stopped"
WITHOUT_FORMATS = {
    "broker": _RUNS,
    "completion": _PRINTS_A_DOCUMENT,
    "config docs": _PRINTS_A_DOCUMENT,
    "config schema": _PRINTS_A_DOCUMENT,
    "console": _RUNS,
    "consume": _PRINTS_RECORDS,
    "demo": "shows a story; its exit status is the result",
    "dev": _RUNS,
    "produce": _PRINTS_RECORDS,
    "snippets": _PRINTS_A_DOCUMENT,
}
"""Commands without `--output table|json|yaml|csv`, and the reason."""


def test_every_command_has_output_formats_or_a_reason() -> None:
    def has_formats(option: Any) -> bool:
        return "--output" in option.opts and set(Format) <= {*getattr(option.type, "choices", ())}

    found = dict(commands_of(typer.main.get_command(app)))
    without = {name for name, command in found.items() if not any(map(has_formats, command.params))}
    assert without == WITHOUT_FORMATS.keys()


def test_every_error_code_that_brokers_send_has_advice() -> None:
    sources = [path for path in (ROOT / "broker").rglob("*.py") if "gen" not in path.parts]
    sent = {
        ErrorCode[node.attr]
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ErrorCode"
        and node.attr.isupper()
    }
    assert sent - {ErrorCode.NONE} == set(errors.ADVICE)


def test_every_error_class_has_a_description() -> None:
    for title, module in errors.MODULES:
        found = list(errors.classes(module))
        assert found, title
        for kind in found:
            assert kind.__doc__, kind.__name__


def test_unsupported_apis_exist_in_kafka() -> None:
    schemas = {path.name.replace("_", "") for path in Path(kio.schema.__path__[0]).iterdir()}
    absent = {name for names, _ in kafka_apis.ABSENT for name in names}
    assert absent
    assert not absent & {api.name for api in APIS.values()}
    kafka = {api.name for api in KAFKA_APIS.values()}
    assert kafka <= absent | {api.name for api in APIS.values()}
    assert {name.lower() for name in absent} <= schemas


def test_every_served_api_is_tested() -> None:
    served = {*make_handlers(has_client_metrics=True), *INLINE}
    assert served == APIS.keys(), "nothing is announced that has no handler"
    assert EVIDENCE.keys() == {api.name for api in APIS.values()}
    assert kafka_apis.DIFFERENCES.keys() <= EVIDENCE.keys()
    for name, tests in EVIDENCE.items():
        assert tests, name
        for path in tests.values():
            assert (ROOT / path).is_file(), (name, path)


def test_apis_are_served_in_the_versions_of_kafka() -> None:
    for api in APIS.values():
        found = KAFKA_APIS.get(api.key) or KAFKA_PLUGIN_APIS[api.key]
        assert (api.name, api.announced_min, api.max) == (found.name, found.first, found.last)
