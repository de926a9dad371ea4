"""Run Apache Iceberg's REST catalog, which keeps its tables in SQLite, and read a table with
Iceberg's Java client. Maven downloads both into build/iceberg once, 71 MB; the Hadoop jars that
they need come with pyspark.

`tests/table/catalog` has the programs.
"""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from subprocess import Popen

import pyspark

from tests.support.java import JVM, running, wait_while_running
from tests.support.maven import Program
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

VERSION = "1.10.1"
ARTIFACTS = (
    ("org.apache.iceberg", "iceberg-open-api", VERSION, "test-fixtures"),
    ("org.apache.iceberg", "iceberg-core", VERSION, ""),
    ("org.apache.iceberg", "iceberg-core", VERSION, "tests"),
    ("org.apache.iceberg", "iceberg-parquet", VERSION, ""),
    ("org.apache.iceberg", "iceberg-data", VERSION, ""),
    ("org.apache.iceberg", "iceberg-aws", VERSION, ""),
    ("org.eclipse.jetty", "jetty-servlet", "11.0.26", ""),
    ("org.xerial", "sqlite-jdbc", "3.50.3.0", ""),
    ("software.amazon.awssdk", "s3", "2.33.0", ""),
    ("software.amazon.awssdk", "kms", "2.33.0", ""),
    ("software.amazon.awssdk", "sts", "2.33.0", ""),
)
PROGRAM = Program(
    Path(__file__).parents[2] / "build" / "iceberg",
    Path(__file__).parents[1] / "table" / "catalog",
    ARTIFACTS,
    tuple(sorted(Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"))),
)
RUN_S = PATIENCE_S


class RestCatalog:
    """The server on one directory; it can be restarted.

    `properties` are those of Iceberg catalogs, and `credential` is the credential that clients
    need.
    """

    def __init__(
        self, directory: Path, *, warehouse: str = "", properties: Mapping[str, str] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        self._log = directory / "rest-catalog.log"
        self._settings = {
            "port": str(self._port),
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{directory / 'rest.db'}",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse or directory.resolve().as_uri(),
            **(properties or {}),
        }
        self.url = f"http://127.0.0.1:{self._port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run a server process."""
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        with self._process(*settings) as process:
            wait_while_running(process, self._log, self._responds)
            yield

    def _process(self, *arguments: str) -> "AbstractContextManager[Popen[bytes]]":
        main = "org.apache.iceberg.rest.CatalogServer"
        return running(*JVM, "-cp", PROGRAM.class_path(), main, *arguments, log=self._log)

    def _responds(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/config", timeout=RUN_S):
                return True
        except urllib.error.HTTPError as error:
            with error:
                return error.code == 401
        except (urllib.error.URLError, ConnectionError):
            return False


def rows_by_java(url: str, table: str) -> list[tuple[int, int, int | None]]:
    """Return partition, offset and `n` of all rows, as read by Iceberg's Java client."""
    done = subprocess.run(
        (*JVM, "-cp", PROGRAM.class_path(), "TableReader", url, table),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = [line.split() for line in done.stdout.splitlines()]
    return sorted(
        (int(row[0]), int(row[1]), None if row[2] == "null" else int(row[2])) for row in cells
    )
