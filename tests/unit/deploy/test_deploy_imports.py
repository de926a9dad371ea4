"""Nodes and simple commands import few modules, so that they start fast and use little memory."""

import subprocess
import sys

import pytest

LEAN = {
    "jwt",
    "typer",
    "rich",
    "click",
    "confluent_kafka",
    "moto",
    "flask",
    "boto3",
    "botocore",
    "pandas",
    "kafka",
}


def loaded_by(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name for name in shown.stdout.split() if sys.modules.get(name, ...) is not None}


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_node_does_not_import_the_command_line(role: str) -> None:
    code = (
        "from penstock.deploy.node import logs, process; logs.configure('info'); from"
        " penstock.deploy.node.config.load import load"
    )
    flags = ["--store", "s3://bucket", *([] if role == "broker" else ["--metadata-log-dir", "x"])]
    code += f"; load('{role}', {flags}, {{}}); import penstock.{role}.main"
    code += "; import penstock.broker.node" if role == "broker" else ""
    loaded = loaded_by(
        code.replace("; ", "\n")
        + "\nsys_modules = None\nimport sys\nsys.modules = {k: v for k, v in sys.modules.items()"
        " if v}"
    )
    assert not loaded & LEAN


def test_listing_commands_imports_no_command() -> None:
    code = (
        "import contextlib, io, sys; sys.argv = ['penstock', '--help']\n"
        "from penstock.deploy.cli.app import app\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    app()"
    )
    loaded = {name for name in loaded_by(code) if name.startswith("penstock.deploy.cli.")}
    assert loaded == {f"penstock.deploy.cli.{name}" for name in ("app", "completing", "lazy")}


def test_help_imports_no_client() -> None:
    loaded = loaded_by("import penstock.deploy.cli.app")
    assert not loaded & {
        "confluent_kafka",
        "moto",
        "grpc",
        "kafka",
        "obstore",
        "penstock.broker.node",
        "penstock.controller.main",
        "uvloop",
    }


def test_a_cluster_in_one_process_does_not_import_rich() -> None:
    """Its nodes run in the process of the command, which may still import rich for an error."""
    loaded = loaded_by(
        "from penstock.deploy.node import logs\nlogs.import_structlog()"
        "\nimport penstock.deploy.local.dev_cluster"
        "\nimport penstock.deploy.local.in_process\nassert 'rich' not in __import__('sys').modules"
        "\nimport rich"
    )
    assert {"rich", "structlog"} <= loaded
    assert "rich.traceback" not in loaded


def test_broker_metrics_do_not_import_the_controller() -> None:
    loaded = loaded_by(
        "from penstock.broker.health import BrokerHealth"
        "\nfrom penstock.deploy.node.metrics.node import metrics_of"
        "\nmetrics_of(BrokerHealth())"
    )
    assert "penstock.deploy.node.metrics.broker" in loaded
    assert "penstock.controller.main" not in loaded
