"""Commands that wait for a store or a schema registry that accepts connections but sends nothing,
like a stopped server.
"""

from collections.abc import Generator
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from penstock.base import slow_calls
from penstock.deploy.cli.app import app
from penstock.deploy.clients.slow_servers import report_slow_servers
from penstock.objectstore import retry
from penstock.protocol.registry.by_id import schemas_of
from penstock.protocol.registry.model import RegistryUnavailable
from penstock.protocol.registry.settings import RegistrySettings
from tests.support.silent_brokers import listening


@pytest.fixture
def silent_store(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Yield the URL of a store."""
    monkeypatch.setattr(retry, "SLOW_S", 0.05)
    monkeypatch.setattr(slow_calls, "reports", [])
    with listening() as (address, _), patch("penstock.deploy.node.logs.to_stderr"):
        yield f"s3://bucket?endpoint=http://{address}"


@pytest.mark.parametrize(
    "command",
    [
        ("consume", "orders", "--snapshot", "s", "--store"),
        ("table", "status", "--store"),
        ("compact", "orders", "--dry-run", "--store"),
        ("doctor", "--store"),
        ("controller", "recover", "--dry-run", "--from"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_reports_that_it_waits_for_the_store_and_what_to_check(
    silent_store: str, command: tuple[str, ...]
) -> None:
    url = f"{silent_store}&deadline_ms=400"
    result = CliRunner().invoke(app, [*command, url], env={"COLUMNS": "400"})
    assert result.exit_code
    said = result.stderr + result.stdout + str(result.exception)
    assert said.count("penstock: waiting for the object store s3://bucket?") == 1
    assert silent_store in said
    assert "within 0.4 s" in said
    assert "Check that it runs and that this machine can reach it" in said


def test_a_command_reports_that_it_waits_for_the_schema_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slow_calls, "SLOW_S", 0.05)
    monkeypatch.setattr(slow_calls, "reports", [])
    report_slow_servers()
    with listening() as (address, _):
        settings = RegistrySettings(url=f"http://{address}", timeout_ms=5_000, retry_ms=0)
        with pytest.raises(RegistryUnavailable, match=f"the schema registry at http://{address}"):
            schemas_of(settings).find(1)
    said = capsys.readouterr().err
    assert said.startswith(f"penstock: waiting for the schema registry at http://{address}, which")
