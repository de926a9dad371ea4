"""Command options in dataclasses: Typer shows each field, and the command gets the dataclass."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from penstock.deploy.cli.option_groups import with_option_groups


@dataclass(frozen=True, kw_only=True)
class Place:
    store: Annotated[str, typer.Option(envvar="OPTION_GROUPS_STORE")]
    names: Annotated[list[str] | None, typer.Option("--name")] = None


@dataclass(frozen=True, kw_only=True)
class Format:
    schema: Path | None = None
    framed: Annotated[bool, typer.Option("--framed")] = False


app = typer.Typer()
runs: list[tuple[str, Place, Format, int]] = []


@app.command()
@with_option_groups
def copy(topic: str, *, place: Place, layout: Format, count: int = 1) -> None:
    """Copy a topic."""
    runs.append((topic, place, layout, count))


def test_a_command_receives_its_dataclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.clear()
    given = ["t", "--store", "s", "--name", "a", "--name", "b", "--schema", "f.json", "--framed"]
    assert CliRunner().invoke(app, given).exit_code == 0
    monkeypatch.setenv("OPTION_GROUPS_STORE", "from-env")
    assert CliRunner().invoke(app, ["t", "--count", "2"]).exit_code == 0
    (_, place, layout, _), last = runs
    assert (place.store, list(place.names or ())) == ("s", ["a", "b"])
    assert layout == Format(schema=Path("f.json"), framed=True)
    assert (last[1].store, last[2], last[3]) == ("from-env", Format(), 2)


def test_a_field_without_a_default_is_required() -> None:
    done = CliRunner().invoke(app, ["t"])
    assert done.exit_code == 2
    assert "--store" in done.output
