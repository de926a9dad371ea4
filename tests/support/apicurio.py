"""Run Apicurio Registry, which stores schemas in Kafka topics and provides Confluent's
API.

Maven downloads it once into build/apicurio (110 MB). Each process reads the journal topic from its
start into memory, so a new process contains only what Penstock has stored.
"""

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Any

from tests.support.java import JVM, running, wait_while_running
from tests.support.missing import missing
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

VERSION = "3.0.9"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
HOME = Path(__file__).parents[2] / "build" / "apicurio"
POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId>"
    "<artifactId>x</artifactId><version>1</version></project>"
)
FETCHED_S = 600
ASKED_S = PATIENCE_S
HEAP = "-Xmx512m"


def fetch_apicurio() -> Path:
    """Return the path of the registry program, after downloading it if it is missing."""
    if not all(shutil.which(command) for command in ("java", "mvn")):
        missing("there is no JDK 17 with Maven on this machine: run `make jdk`")
    complete = HOME / "complete"
    if not complete.exists() or complete.read_text() != ARTIFACT:
        HOME.mkdir(parents=True, exist_ok=True)
        # Maven puts its markers beside a project; without a project, into ${project.basedir}.
        (HOME / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:unpack", f"-Dartifact={ARTIFACT}"]
        command.append(f"-DoutputDirectory={HOME}")
        subprocess.run(command, cwd=HOME, check=True, timeout=FETCHED_S)
        complete.write_text(ARTIFACT)
    return HOME / f"apicurio-registry-app-{VERSION}-runner.jar"


class Apicurio:
    """One process of the registry."""

    def __init__(self, jar: Path, bootstrap: str, directory: Path, port: int | None = None) -> None:
        self._port = port or free_port()
        self._log = directory / f"registry-{self._port}.log"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._port),
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": bootstrap,
        }
        flags = [f"-D{name}={value}" for name, value in settings.items()]
        self._command = (*JVM, HEAP, *flags, "-jar", str(jar))

    @property
    def url(self) -> str:
        """Return the address of the API for Confluent's clients."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> "AbstractContextManager[Popen[bytes]]":
        return running(*self._command, log=self._log)

    def until(self, process: "Popen[bytes]", condition: Callable[[], bool]) -> None:
        """Wait for a condition while the process runs."""
        wait_while_running(process, self._log, condition)

    def is_ready(self) -> bool:
        """Return whether the registry is ready to serve schemas."""
        try:
            return self.send_request("GET", "/subjects")[0] == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def send_request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request; return the status and the response."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=ASKED_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
