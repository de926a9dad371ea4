"""Check where the demo's Spark runs: the master, its executors, and what they can reach.

Invariant: whatever a user can set wrong ends within a deadline, in an error that names the value
and what to do. Spark itself waits for ever for workers, and a minute for a master.
"""

import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from deploy.errors import DeployError, UsageError
from objectstore.config import DirectoryConfig, S3Config
from objectstore.url import parse_store_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[2]"
CONNECT_TIMEOUT_S: Final = 5.0
EXECUTORS_TIMEOUT_S: Final = 90.0
"""For the first executor. Spark gives up on a silent master after 60 s."""
_POLL_INTERVAL_S: Final = 0.2
_PROBES_MAX: Final = 64
_LOCAL: Final = re.compile(r"local(\[([1-9][0-9]*|\*)\])?")
_CAUSES: Final = (
    re.compile(r'Cannot run program "[^"]+".*?(?=,? *\n|$)'),
    re.compile(r"\[PYTHON_VERSION_MISMATCH\][^\n]*"),
    re.compile(r"ModuleNotFoundError: [^\n]*"),
)


class _Seen(NamedTuple):
    """What one task found. has_penstock: whether its Python finds the packages."""

    host: str
    python: str
    has_penstock: bool
    problem: str


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """Where Spark runs. url: local[N], or spark://HOST:PORT with more HOST:PORT behind commas.
    archive: a packed environment for executors; None: they run this Python, at the same path.
    """

    url: str = LOCAL
    archive: Path | None = None

    @property
    def is_cluster(self) -> bool:
        return self.url.startswith("spark://")

    def checked(self) -> "SparkTarget":
        """Return this. Raises UsageError for a value that cannot work on any machine."""
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
            raise UsageError(f"--archive {self.archive}: there is no such file; venv-pack makes it")
        return self

    def local_address(self) -> str:
        """Return the address of this machine that the workers can reach: the one from which the
        master answers. Raises DeployError if no master accepts a connection within 5 s.
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
        raise DeployError(
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
                    " the master's log says another"
                )
            found.append((parts.hostname, port))
        return found


def check_executors(spark: "SparkSession", master: SparkTarget, store_url: str) -> str:
    """Wait for executors and let tasks check what they need. Return what runs, for people. Raises
    DeployError, and Spark's errors if tasks cannot run.
    """
    context: Any = spark.sparkContext
    _until_executors(spark, master)
    tasks = min(max(context.defaultParallelism, 1), _PROBES_MAX)
    found = context.parallelize(range(tasks), tasks).mapPartitions(probe_of(store_url)).collect()
    seen = [_Seen(*item) for item in found]
    for item in seen:
        if item.problem:
            raise DeployError(
                f"the worker on {item.host} cannot reach the store: {item.problem}; give --store an"
                " address that every worker reaches"
            )
        if not item.has_penstock:
            raise DeployError(explained(f"no Penstock in {item.python} on {item.host}", master))
    return f"{len({(item.host, item.python) for item in seen})} executors answered"


def explained(problem: str, master: SparkTarget) -> str:
    """Return an error of Spark in a line, with what to do if executors lack Python or Penstock."""
    cause = next((found[0] for pattern in _CAUSES if (found := pattern.search(problem))), "")
    if not cause and not problem.startswith("no Penstock"):
        return f"Spark failed: {problem.strip().partition(chr(10))[0]}"
    way = (
        "pack the environment again, with the Python of the workers"
        if master.archive
        else "install it there at the same path, or give --archive a packed environment"
    )
    return f"executors cannot run Penstock: {cause or problem}; {way}: docs/how-to/spark-cluster.md"


def _until_executors(spark: "SparkSession", master: SparkTarget) -> None:
    context: Any = spark.sparkContext
    jvm, deadline = context._jsc.sc(), time.monotonic() + EXECUTORS_TIMEOUT_S
    while jvm.getExecutorMemoryStatus().size() <= master.is_cluster:  # the driver is one of them
        if jvm.isStopped():
            raise DeployError(f"--master {master.url}: what listens there is no Spark master")
        if time.monotonic() > deadline:
            raise DeployError(
                f"--master {master.url}: no executor within {EXECUTORS_TIMEOUT_S:.0f} s; does the"
                " master's page show workers with a free core and 1 GiB, and can they connect to"
                f" {context.getConf().get('spark.driver.host')}?"
            )
        time.sleep(_POLL_INTERVAL_S)


def probe_of(store_url: str) -> Callable[[Iterator[Any]], Iterator[tuple[str, str, bool, str]]]:
    """Return a function for executors that may lack Penstock. Spark sends nested functions by
    value.
    """
    config = parse_store_url(store_url)
    endpoint = config.endpoint if isinstance(config, S3Config) else None
    directory = config.directory if isinstance(config, DirectoryConfig) else None
    timeout_s = CONNECT_TIMEOUT_S

    def probe(_: Iterator[Any]) -> Iterator[tuple[str, str, bool, str]]:
        import importlib.util
        import pathlib
        import socket
        import sys
        import urllib.parse

        problem = ""
        if directory and not pathlib.Path(directory).is_dir():
            problem = f"the directory {directory} does not exist there"
        if endpoint:
            parts = urllib.parse.urlsplit(endpoint)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            try:
                socket.create_connection((parts.hostname, port), timeout_s).close()
            except OSError as error:
                problem = f"{endpoint}: {error.strerror or error}"
        has_penstock = importlib.util.find_spec("lake") is not None
        yield socket.gethostname(), sys.executable, has_penstock, problem

    return probe
