"""A standalone Spark cluster of real processes, started by PySpark's own scripts: a master and
workers on 127.0.0.1.

Its environment and working directories are empty, so executors have only the files that jobs ship
to them.
"""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import pyarrow

from tests.support.child_process import killed_at_end
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
START_S: Final = PATIENCE_S
"""For a JVM on a busy machine."""
JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MEMORY: Final = "600m"
"""The memory of drivers and executors. A worker has 1 GiB and one core, so it runs one executor at
a time.
"""


def clean_environment() -> dict[str, str]:
    """Return the environment without variables of Python, Penstock and the store."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    return kept | {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "SPARK_HOME": os.environ["SPARK_HOME"],
        "SPARK_CONF_DIR": os.environ["SPARK_CONF_DIR"],
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class Standalone:
    """Run a master and workers with one core each."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self.directory = directory
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._workers_count = workers
        self._master: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers, *([self._master] if self._master else [])):
            process.terminate()
        for process in (*self.workers, *([self._master] if self._master else [])):
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        port = self.url.rpartition(":")[2]
        self._master = self._run("master.Master", "master", "--port", port)
        self._until_logged("master", "I have been elected leader")
        for number in range(self._workers_count):
            self.add_worker(f"worker-{number}")
        for number in range(self._workers_count):
            self._until_logged(f"worker-{number}", "Successfully registered with master")

    def add_worker(self, name: str) -> None:
        size = ("--cores", "1", "--memory", "1g")
        self.workers.append(self._run("worker.Worker", name, *size, self.url))

    def log(self, name: str) -> str:
        return (self.directory / name / "log").read_text()

    def _until_logged(self, name: str, text: str) -> None:
        wait_until(lambda: text in self.log(name), START_S)

    def _run(self, main: str, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        home = self.directory / name
        home.mkdir(parents=True)
        environment = clean_environment() | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            "SPARK_WORKER_DIR": str(home / "work"),
        }
        script = Path(environment["SPARK_HOME"], "bin", "spark-class")
        command = (str(script), f"org.apache.spark.deploy.{main}", "--host", "127.0.0.1")
        with (home / "log").open("wb") as log:
            return subprocess.Popen(
                (*command, "--webui-port", "0", *arguments),
                cwd=home,
                env=environment,
                stdout=log,
                stderr=log,
            )


@contextmanager
def connect_server(master: str, directory: Path, python: Path, *arguments: str) -> Generator[str]:
    """Run a Spark Connect server as PySpark's script does. Yield its address.

    python: the absolute path of the Python interpreter for server and executors.
    """
    port = free_port()
    environment = clean_environment() | {
        "PYSPARK_PYTHON": str(python),
        "SPARK_CONNECT_MODE": "0",  # as in the script
    }
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": MEMORY,
        "spark.executor.memory": MEMORY,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.task.maxFailures": "1",
    }
    command = (
        str(Path(environment["SPARK_HOME"], "bin", "spark-submit")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--name", "Spark Connect server", "--master", master),
        *(part for item in settings.items() for part in ("--conf", "=".join(item))),
        *arguments,
    )
    log = directory / "connect.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=output
        )
    with killed_at_end(process):
        try:
            wait_until(
                lambda: process.poll() is not None or "server started at" in log.read_text(),
                START_S,
            )
            assert process.poll() is None, log.read_text()[-3_000:]
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


# --- what jobs ship -------------------------------------------------------------------------------


def build_wheel(directory: Path) -> Path:
    """Build Penstock's wheel and return its path."""
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("penstock_streams-*.whl")
    return wheel


def environment_without_penstock(directory: Path) -> Path:
    """Create a virtual environment that can import PySpark and pyarrow of this one, but not
    Penstock, and return it.

    The directory with them is named in a path file, and path files inside such a directory have no
    effect.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    installed = Path(pyarrow.__file__).parents[1]
    (packages_of(directory) / "dependencies.pth").write_text(f"{installed}\n")
    return directory


def packages_of(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def pack(wheel: Path, directory: Path) -> Path:
    """Pack an environment with the wheel as venv-pack does, and return the archive."""
    environment = environment_without_penstock(directory / "packed")
    with zipfile.ZipFile(wheel) as unpacked:
        unpacked.extractall(packages_of(environment))
    archive = directory / "env.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(environment, ".")
    return archive


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack the archive to `env` in the directory, and return the path of its Python."""
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "env", filter="fully_trusted")
    return directory / "env" / "bin" / "python"


def start_job(
    command: Sequence[str | Path], directory: Path, **environment: str
) -> "subprocess.Popen[bytes]":
    """Start a driver in the directory, with a clean environment and its output in `job.log`."""
    with (directory / "job.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=directory, env=clean_environment() | environment, stdout=log, stderr=log
        )


def until_ended(process: "subprocess.Popen[bytes]", directory: Path, timeout_s: float) -> str:
    """Wait for the job, which must succeed, and return its output."""
    try:
        process.wait(timeout_s)
    finally:
        process.kill()
        process.wait()
    text = (directory / "job.log").read_text()
    assert process.returncode == 0, text[-5_000:]
    return text
