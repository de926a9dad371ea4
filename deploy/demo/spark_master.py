"""Validate the master of the demo's Spark, and explain errors caused by packages missing on
executors.

Invariant: an error contains the value and a remedy. Does not import pyspark.
"""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.base.errors import ExpectedError
from penstock.deploy.errors import UsageError

LOCAL: Final = "local[2]"
CONNECT_TIMEOUT_S: Final = 5.0
_LOCAL: Final = re.compile(r"local(\[([1-9][0-9]*|\*)\])?")
_CAUSES: Final = (
    re.compile(r'Cannot run program "[^"]+".*?(?=,? *\n|$)'),
    re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*"),
    re.compile(r"ModuleNotFoundError: [^\n]*"),
)


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """The master of Spark. url: local[N], or spark://HOST:PORT, optionally followed by more
    HOST:PORT, separated by commas. archive: a packed environment for executors; None if they run
    this Python at the same path.
    """

    url: str = LOCAL
    archive: Path | None = None

    @property
    def is_cluster(self) -> bool:
        return self.url.startswith("spark://")

    def checked(self) -> "SparkTarget":
        """Return this target. Raises UsageError for a value that is invalid on every machine."""
        if not self.is_cluster and not _LOCAL.fullmatch(self.url):
            raise UsageError(
                f"--master {self.url!r} is not allowed: local[N] or spark://HOST:PORT; for YARN and"
                " Kubernetes see docs/how-to/spark-cluster.md"
            )
        if self.is_cluster:
            self._addresses()
        if self.archive is not None and not self.is_cluster:
            raise UsageError("--archive is for executors on other machines: it needs --master")
        if self.archive is not None and not self.archive.is_file():
            raise UsageError(
                f"--archive {self.archive}: the file does not exist; create it with venv-pack"
            )
        return self

    def local_address(self) -> str:
        """Return the address of this machine that workers can reach: the local address of a
        connection to the master. Raises ExpectedError if no master accepts a connection within 5 s.
        """
        if not self.is_cluster:
            return "127.0.0.1"
        problems: list[str] = []
        for host, port in self._addresses():
            try:
                with socket.create_connection((host, port), CONNECT_TIMEOUT_S) as connection:
                    return str(connection.getsockname()[0])
            except OSError as error:
                problems.append(f"{host}:{port}: {error.strerror or error}")
        raise ExpectedError(
            f"--master {self.url}: no connection within {CONNECT_TIMEOUT_S:.0f} s"
            f" ({'; '.join(problems)}); is the master running, and is this the address in its log?"
        )

    def _addresses(self) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for address in self.url.removeprefix("spark://").split(","):
            parts = urlsplit(f"spark://{address}")
            try:
                port = parts.port
            except ValueError:
                port = None
            if not parts.hostname or port is None or parts.path:
                raise UsageError(
                    f"--master {self.url!r}: {address!r} is not HOST:PORT; the port is 7077 unless"
                    " the master's log shows another one"
                )
            found.append((parts.hostname, port))
        return found


def explained(problem: str, master: SparkTarget) -> str:
    """Return an error of Spark on one line, with a remedy if executors lack Python or Penstock."""
    cause = next((found[0] for pattern in _CAUSES if (found := pattern.search(problem))), "")
    if not cause and not problem.startswith("no Penstock"):
        return f"Spark failed: {problem.strip().partition(chr(10))[0]}"
    way = (
        "pack the environment again, with the Python of the workers"
        if master.archive
        else "install it there at the same path, or give --archive a packed environment"
    )
    return f"executors cannot run Penstock: {cause or problem}; {way}: docs/how-to/spark-cluster.md"
