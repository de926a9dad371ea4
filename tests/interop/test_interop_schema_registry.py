"""A schema registry that keeps its schemas in Kafka topics: Apicurio Registry with its API for
Confluent's clients. Maven fetches it by its coordinates into build/apicurio once, 110 MB.
Karapace, which is written in Python, has no distribution that pip finds.

Each process reads the journal topic from its beginning into a database in its memory, so what a
new process knows comes from Penstock alone.
"""

import asyncio
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.java import JVM, running, wait_while_running
from tests.support.missing import missing
from tests.support.ports import free_port

VERSION = "3.0.9"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
HOME = Path(__file__).parents[2] / "build" / "apicurio"
POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId>"
    "<artifactId>x</artifactId><version>1</version></project>"
)
FETCHED_S = 600
ASKED_S = 10
SUBJECT = "/subjects/orders-value"
HEAP = "-Xmx512m"


def _record(*fields: dict[str, Any]) -> dict[str, str]:
    """Return the body that registers a record schema of Avro."""
    schema = {"type": "record", "name": "Order", "fields": fields}
    return {"schema": json.dumps(schema), "schemaType": "AVRO"}


NUMBER = {"name": "number", "type": "long"}
FIRST = _record(NUMBER)
SECOND = _record(NUMBER, {"name": "note", "type": "string", "default": ""})
INCOMPATIBLE = _record(NUMBER, {"name": "price", "type": "double"})
THIRD = _record(NUMBER, {"name": "count", "type": "int", "default": 1})


@pytest.fixture(scope="session")
def jar() -> Path:
    """Return the program of the registry, fetched if it is not there."""
    if not all(shutil.which(command) for command in ("java", "mvn")):
        missing("there is no JDK 17 with Maven on this machine: run `make jdk`")
    complete = HOME / "complete"
    if not complete.exists() or complete.read_text() != ARTIFACT:
        HOME.mkdir(parents=True, exist_ok=True)
        # Maven puts its markers beside a project, and without one into ${project.basedir}.
        (HOME / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:unpack", f"-Dartifact={ARTIFACT}"]
        command.append(f"-DoutputDirectory={HOME}")
        subprocess.run(command, cwd=HOME, check=True, timeout=FETCHED_S)
        complete.write_text(ARTIFACT)
    return HOME / f"apicurio-registry-app-{VERSION}-runner.jar"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path / "cluster", brokers=2) as cluster:
        yield cluster


class Registry:
    """One process of the registry."""

    def __init__(self, jar: Path, bootstrap: str, directory: Path) -> None:
        self._port = free_port()
        self._log = directory / f"registry-{self._port}.log"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._port),
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": bootstrap,
        }
        flags = [f"-D{name}={value}" for name, value in settings.items()]
        self._command = (*JVM, HEAP, *flags, "-jar", str(jar))

    def start(self) -> "AbstractContextManager[Popen[bytes]]":
        return running(*self._command, log=self._log)

    def until(self, process: "Popen[bytes]", condition: Callable[[], bool]) -> None:
        """Wait for a condition while the process runs."""
        wait_while_running(process, self._log, condition)

    def is_ready(self) -> bool:
        """Return whether it serves schemas."""
        try:
            return self.ask("GET", "/subjects")[0] == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return status and answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/apis/ccompat/v7{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=ASKED_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def register(self, schema: object) -> int:
        """Return the id of the schema."""
        status, answer = self.ask("POST", f"{SUBJECT}/versions", schema)
        assert status == 200, answer
        return answer["id"]

    def versions(self) -> list[tuple[int, Any]]:
        """Return id and schema of each version."""
        _, numbers = self.ask("GET", f"{SUBJECT}/versions")
        found = [self.ask("GET", f"{SUBJECT}/versions/{number}")[1] for number in numbers]
        return [(version["id"], json.loads(version["schema"])) for version in found]


@pytest.mark.long
async def test_schemas_outlive_their_registry(cluster: Cluster, jar: Path, tmp_path: Path) -> None:
    first, second, third = (Registry(jar, cluster.bootstrap, tmp_path) for _ in range(3))
    await asyncio.to_thread(_evolve, first)
    known = await asyncio.to_thread(_restart_two, second, third)
    schemas = [json.loads(body["schema"]) for body in (FIRST, SECOND, THIRD)]
    assert [schema for _, schema in known] == schemas


def _evolve(registry: Registry) -> None:
    """Register two versions; a third one is refused. The process ends by SIGKILL."""
    with registry.start() as process:
        registry.until(process, registry.is_ready)
        ids = [registry.register(FIRST)]
        status, answer = registry.ask("PUT", "/config/orders-value", {"compatibility": "BACKWARD"})
        assert status == 200, answer
        ids.append(registry.register(SECOND))
        assert registry.register(FIRST) == ids[0] != ids[1]
        status, answer = registry.ask("POST", f"{SUBJECT}/versions", INCOMPATIBLE)
        assert status == 409, answer
        assert [schema_id for schema_id, _ in registry.versions()] == ids


def _restart_two(one: Registry, other: Registry) -> list[tuple[int, Any]]:
    """Start two processes at once; what one registers, the other one has. Returns that."""
    with one.start() as process, other.start() as other_process:
        one.until(process, one.is_ready)
        other.until(other_process, other.is_ready)
        one.until(process, lambda: len(one.versions()) == 2)
        known = one.versions()
        other.until(other_process, lambda: other.versions() == known)
        status, answer = other.ask("POST", f"{SUBJECT}/versions", INCOMPATIBLE)
        assert status == 409, answer
        new = other.register(THIRD)
        assert new not in dict(known)
        one.until(process, lambda: new in dict(one.versions()))
        return one.versions()
