"""Ask Spark for the average departure delay of each carrier, and draw the answer.

Invariant: Spark gets the store's address and the topic's name, and no address of a broker. Counts
and sums are whole numbers, so the answer can be compared exactly. Only this module of the package
imports pyspark. Needs Java 17 or newer.
"""

import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from base.extras import install_hint
from deploy.demo.delays import Delay
from deploy.demo.spark_master import SparkTarget, explained
from deploy.errors import DeployError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA: Final = "carrier string, dep_delay long"
CORES: Final = 2
LOGGING: Final = Path(__file__).with_name("log4j2.properties").resolve()
"""Logs errors only."""


def check_installed() -> None:
    """Check for missing packages before anything starts. Raises DeployError."""
    try:
        import matplotlib.figure as _figure
        import pyarrow as _pyarrow  # type: ignore[import-untyped]
        import pyspark as _pyspark
    except ImportError as error:
        raise DeployError(
            f"the demo with Spark needs the package {error.name}: {install_hint('demo', 'spark')}"
        ) from None
    del _figure, _pyarrow, _pyspark
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise DeployError(
            "Spark needs Java 17 or newer: run deploy/ensure-java.sh (make jre), or set JAVA_HOME"
        )


@contextmanager
def spark_session(master: SparkTarget) -> "Generator[SparkSession]":
    """Run Spark. `PYSPARK_PYTHON` makes its workers run this Python, or that of the archive,
    instead of `python3`. Raises DeployError if the master does not answer.
    """
    address = master.local_address()
    os.environ.setdefault("SPARK_LOCAL_IP", address)
    # PySpark warns that it does not support pandas 3, which the job does not use.
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
    """Turn errors of Spark into DeployError."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise DeployError(explained(str(error), master)) from None


@contextmanager
def _python_of_workers(master: SparkTarget) -> "Generator[None]":
    """Run the JVM in a directory where the path of the executors' Python leads to this Python: the
    driver runs it too, for the plan.
    """
    if master.archive is None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        yield
        return
    os.environ["PYSPARK_PYTHON"] = os.path.join(".", "env", "bin", "python")
    with TemporaryDirectory(prefix="penstock-demo-") as directory, contextlib.chdir(directory):
        Path("env").symlink_to(sys.prefix)
        yield


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
