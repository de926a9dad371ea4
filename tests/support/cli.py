"""Run `penstock` commands against a cluster inside the test's event loop."""

import asyncio
import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner

from penstock.base.errors import ExpectedError
from penstock.deploy.cli.app import app
from penstock.deploy.errors import print_error
from tests.support.cluster import Cluster


def run_here(*arguments: str, given: str = "", **environment: str) -> CompletedProcess[str]:
    """Run a command in this process, with a tenth of the CPU that a separate process
    needs.

    Do not use it on the event loop of the cluster. given: the stdin of the command.
    """
    # Nodes may log in this process, too, and must not log to a stream that is closed with the
    # command.
    with patch("penstock.deploy.node.logs.to_stderr"):
        done = CliRunner().invoke(app, list(arguments), input=given, env=environment)
    code, reported = done.exit_code, io.StringIO()
    if isinstance(done.exception, ExpectedError):
        code = done.exception.exit_code
        with redirect_stderr(reported):
            print_error(done.exception)
    elif not isinstance(done.exception, SystemExit | None):
        raise done.exception
    return CompletedProcess(arguments, code, done.stdout, done.stderr + reported.getvalue())


class Cli:
    """Run commands in a thread, because the event loop serves the cluster."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.bootstrap = cluster.bootstrap
        assert cluster.controller is not None
        self._controller = cluster.controller.address
        self._directory = directory

    def file(self, name: str, content: Any) -> str:
        path = self._directory / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    async def run(self, *arguments: str, code: int = 0, given: bytes = b"") -> str:
        """Run a command and return its stdout. given: its stdin."""
        environment = {
            "PENSTOCK_BOOTSTRAP": self.bootstrap,
            "PENSTOCK_CONTROLLER": self._controller,
            "XDG_CONFIG_HOME": str(self._directory / "config"),
            "COLUMNS": "160",
        }
        # The nodes log in this process, too, and must not log to a stream that is closed with the
        # command.
        with patch("penstock.deploy.node.logs.to_stderr"):
            result = await asyncio.to_thread(
                CliRunner().invoke, app, list(arguments), input=given, env=environment
            )
        if isinstance(result.exception, ExpectedError):
            # Without the frames of the command, whose clients would otherwise try to connect while
            # the cluster stops.
            error = result.exception.with_traceback(None)
            error.__context__ = None
            del result
            raise error
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout
