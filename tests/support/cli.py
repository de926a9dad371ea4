"""Run `penstock` commands against a cluster inside the test's event loop."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner

from penstock.base.errors import ExpectedError
from penstock.deploy.cli.app import app
from tests.support.cluster import Cluster


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
        """Return stdout. given: what the command reads from stdin."""
        environment = {
            "PENSTOCK_BOOTSTRAP": self.bootstrap,
            "PENSTOCK_CONTROLLER": self._controller,
            "XDG_CONFIG_HOME": str(self._directory / "config"),
            "COLUMNS": "160",
        }
        # The nodes log in this process too: not into a stream that ends with the command.
        with patch("penstock.deploy.node.logs.to_stderr"):
            result = await asyncio.to_thread(
                CliRunner().invoke, app, list(arguments), input=given, env=environment
            )
        if isinstance(result.exception, ExpectedError):
            # Without the frames of the command: their clients would go on to connect while the
            # cluster stops.
            error = result.exception.with_traceback(None)
            error.__context__ = None
            del result
            raise error
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout
