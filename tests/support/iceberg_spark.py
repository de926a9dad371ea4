"""Run SQL in Spark 4.1 with Iceberg's runtime, the newest combination that Iceberg supports. Maven
downloads the jars into build/iceberg-spark once, 350 MB.
"""

import json
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from tests.support.maven import Program
from tests.support.waiting import PATIENCE_S

SPARK = "4.1.1"
ICEBERG = "1.12.0"
PROGRAM = Program(
    Path(__file__).parents[2] / "build" / "iceberg-spark",
    Path(__file__).parents[1] / "table" / "spark",
    (
        ("org.apache.spark", "spark-sql_2.13", SPARK, ""),
        ("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", ICEBERG, ""),
        ("org.xerial", "sqlite-jdbc", "3.50.3.0", ""),
    ),
)
STATEMENT_S = PATIENCE_S
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
"""The packages of `JavaModuleOptions` in Spark."""

_JVM = (
    "java",
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
)


class SparkSql:
    """A running session."""

    def __init__(self, process: "Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __call__(self, statement: str) -> list[dict[str, Any]]:
        """Run a statement and return its rows. Raises AssertionError with the reason if
        it fails.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(statement.split()) + "\n")
        self._process.stdin.flush()
        line = self._lines.get(timeout=STATEMENT_S)
        assert line.startswith("["), f"{statement}: {line or self._log.read_text()[-3_000:]}"
        return json.loads(line)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip("\n"))
        self._lines.put("")


@contextmanager
def spark_sql(warehouses: Mapping[str, Path]) -> Iterator[SparkSql]:
    """Start Spark with a catalog for the SQLite file of each warehouse directory, with the same
    names as in `table sync`.
    """
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.default.parallelism": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
    }
    for name, directory in warehouses.items():
        catalog = f"spark.sql.catalog.{name}"
        settings |= {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "jdbc",
            f"{catalog}.uri": f"jdbc:sqlite:{directory / 'catalog.db'}",
            f"{catalog}.warehouse": directory.resolve().as_uri(),
            f"{catalog}.jdbc.schema-version": "V1",
            f"{catalog}.cache-enabled": "false",
        }
    log = next(iter(warehouses.values())).parent / "spark.log"
    command = (
        *_JVM,
        "-cp",
        PROGRAM.class_path(),
        "SparkSql",
        *(f"{name}={value}" for name, value in settings.items()),
    )
    with log.open("w") as errors:
        process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, text=True)
    try:
        yield SparkSql(process, log)
    finally:
        process.kill()
        process.wait(STATEMENT_S)
        assert process.stdin is not None
        process.stdin.close()
