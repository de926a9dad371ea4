"""Compute the average departure delay of each carrier with Spark, and draw a chart.

Invariant: Spark receives the store URL and the topic name, but no broker address. Counts and sums
are integers, so that the results can be compared exactly. Only this module of the package imports
pyspark. Requires Java 17 or newer.
"""

import contextlib
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.deploy.demo.delays import Delay
from penstock.deploy.demo.spark_master import CONNECT_TIMEOUT_S, SparkTarget, explained
from penstock.deploy.output import counted
from penstock.objectstore.config import DirectoryConfig, RemoteConfig
from penstock.objectstore.url import parse_store_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Final = "carrier string, dep_delay long"
CORES: Final = 2
LOGGING: Final = Path(__file__).with_name("log4j2.properties").resolve()
"""Log4j configuration that logs only errors."""
EXECUTORS_TIMEOUT_S: Final = 90.0
"""Maximum wait for the first executor. Spark gives up on a silent master after 60 s, but waits for
workers forever.
"""
_POLL_INTERVAL_S: Final = 0.2
_PROBES_MAX: Final = 64


class _Seen(NamedTuple):
    """The environment of one task. has_penstock: whether its Python can import the packages."""

    host: str
    python: str
    has_penstock: bool
    problem: str


def check_installed() -> None:
    """Check for missing packages before anything starts. Raises ExpectedError."""
    try:
        import matplotlib.figure as _figure
        import pyarrow as _pyarrow  # type: ignore[import-untyped]
        import pyspark as _pyspark
    except ImportError as error:
        raise ExpectedError(
            f"the demo with Spark needs the package {error.name}: {install_hint('demo', 'spark')}"
        ) from None
    del _figure, _pyarrow, _pyspark
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise ExpectedError(
            "Spark needs Java 17 or newer: install it (in a checkout: make jre), or set JAVA_HOME"
        )


@contextmanager
def spark_session(master: SparkTarget) -> "Generator[SparkSession]":
    """Run Spark. `PYSPARK_PYTHON` makes its workers run this Python, or the one in the archive,
    instead of `python3`. Raises ExpectedError if the master does not respond.
    """
    address = master.local_address()
    os.environ.setdefault("SPARK_LOCAL_IP", address)
    # PySpark warns that it does not support pandas 3, but the job does not use pandas.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master.url)
        .appName("penstock demo")
        .config("spark.driver.host", address)
        .config("spark.driver.bindAddress", address)
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={LOGGING.as_uri()}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
    )
    if master.archive is not None:
        builder = builder.config("spark.archives", f"{master.archive.absolute()}#env")
    with _python_of_workers(master):
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def errors_explained(master: SparkTarget) -> "Generator[None]":
    """Convert errors of Spark to ExpectedError."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise ExpectedError(explained(str(error), master)) from None


@contextmanager
def _python_of_workers(master: SparkTarget) -> "Generator[None]":
    """Run the JVM in a directory in which the path of the executors' Python points to this Python,
    because the driver runs the same path for planning.
    """
    if master.archive is None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        yield
        return
    os.environ["PYSPARK_PYTHON"] = os.path.join(".", "env", "bin", "python")
    with TemporaryDirectory(prefix="penstock-demo-") as directory, contextlib.chdir(directory):
        Path("env").symlink_to(sys.prefix)
        yield


def check_executors(spark: "SparkSession", master: SparkTarget, store_url: str) -> str:
    """Wait for executors, and check the environment of their tasks. Return a description of the
    Spark cluster. Raises ExpectedError, and Spark's errors if tasks cannot run.
    """
    context: Any = spark.sparkContext
    _until_executors(spark, master)
    tasks = min(max(context.defaultParallelism, 1), _PROBES_MAX)
    found = context.parallelize(range(tasks), tasks).mapPartitions(probe_of(store_url)).collect()
    seen = [_Seen(*item) for item in found]
    for item in seen:
        if item.problem:
            raise ExpectedError(
                f"the worker on {item.host} cannot reach the store: {item.problem}; set --store to"
                " an address that every worker can reach"
            )
        if not item.has_penstock:
            raise ExpectedError(explained(f"no Penstock in {item.python} on {item.host}", master))
    return f"{counted(len({(item.host, item.python) for item in seen}), 'executor')} responded"


def _until_executors(spark: "SparkSession", master: SparkTarget) -> None:
    context: Any = spark.sparkContext
    jvm, deadline = context._jsc.sc(), time.monotonic() + EXECUTORS_TIMEOUT_S
    while jvm.getExecutorMemoryStatus().size() <= master.is_cluster:  # the driver is one of them
        if jvm.isStopped():
            raise ExpectedError(f"--master {master.url}: the server there is not a Spark master")
        if time.monotonic() > deadline:
            raise ExpectedError(
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
    endpoint = config.endpoint if isinstance(config, RemoteConfig) else None
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
        has_penstock = importlib.util.find_spec("penstock") is not None
        yield socket.gethostname(), sys.executable, has_penstock, problem

    return probe


def delays_of(spark: "SparkSession", store_url: str, topic: str) -> list[Delay]:
    """Compute the delays with one job over the whole topic."""
    from pyspark.sql import functions as f

    log = spark.read.format("penstock").option("store", store_url).option("subscribe", topic).load()
    flight = f.from_json(log["value"].cast("string"), SCHEMA)
    flights = log.select(flight["carrier"].alias("carrier"), flight["dep_delay"].alias("delay"))
    rows: list[Any] = (
        flights.groupBy("carrier")
        .agg(f.count("*"), f.count("delay"), f.sum("delay"), f.avg("delay"))
        .collect()
    )
    return sorted(
        Delay(carrier, count, departed, minutes or 0, mean)
        for carrier, count, departed, minutes, mean in rows
    )


def draw(delays: Sequence[Delay], names: dict[str, str], path: Path) -> None:
    """Draw the averages as bars, in the format of the path's suffix (PNG)."""
    from matplotlib.figure import Figure

    shown = sorted(
        (item for item in delays if item.mean_minutes is not None),
        key=lambda item: item.mean_minutes or 0,
    )
    figure: Any = Figure(figsize=(9, 0.4 * len(shown) + 1.6), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(
        [names.get(item.carrier, item.carrier) for item in shown],
        [item.mean_minutes for item in shown],
        color="#2a6f97",
    )
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set_xlabel("average departure delay, minutes")
    axes.set_title("Flights from New York, 2013: read from the log in object storage")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
