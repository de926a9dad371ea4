"""Run Apache Kafka for comparison, as a single process that is both broker and controller.

Requires JDK 17 and Maven. Maven downloads the jars (130 MB) once into build/kafka, by their
coordinates. The tests of Kafka's tools, Kafka Streams and Kafka Connect use the same jars.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness import free_port

VERSION: Final = "4.2.0"
LIGHT_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""JVM options for short runs: the JVM starts with a third less CPU time, and is slower under
load.
"""
_HOME: Final = Path(__file__).parent.parent / "build" / "kafka"
_START_S: Final = 120.0
_ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.kafka", "kafka-streams", VERSION),
    ("org.apache.kafka", "connect-runtime", VERSION),
    ("org.apache.kafka", "connect-file", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1"),
    ("org.apache.logging.log4j", "log4j-core", "2.25.1"),
)
_LOG4J: Final = """
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
logger.cleaner.name=org.apache.kafka.storage.internals.log
logger.cleaner.level=INFO
"""


class KafkaMissing(Exception):
    """Raised if this machine has no JDK or no Maven."""


@dataclass(frozen=True, slots=True)
class KafkaProcess:
    """bootstrap: its address. log: the file with its output. sasl_port: that of its SASL listener,
    if any.
    """

    bootstrap: str
    log: Path
    sasl_port: int

    def lines(self) -> list[str]:
        """Return the lines of its log so far."""
        return self.log.read_text().splitlines()


def jars() -> str:
    """Return the class path of Kafka. Raises KafkaMissing."""
    return f"{_HOME}:{downloaded(_HOME, *_ARTIFACTS)}/*"


def downloaded(home: Path, *artifacts: tuple[str, str, str]) -> Path:
    """Return the directory with the jars of artifacts and their dependencies, each artifact being
    group, name and version. Download missing jars into `home`. Raises KafkaMissing.
    """
    if not all(shutil.which(command) for command in ("java", "javac", "mvn")):
        raise KafkaMissing("there is no JDK 17 with Maven on this machine: run `make jdk`")
    libs, complete = home / "libs", home / "complete"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in artifacts
    )
    pom = (
        "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId>"
        "<artifactId>x</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    if not complete.exists() or complete.read_text() != pom:
        shutil.rmtree(libs, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(pom)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
        subprocess.run(command, cwd=home, check=True, timeout=600)
        complete.write_text(pom)
    return libs


def prepared() -> str:
    """Return the class path, preceded by the log configuration. Raises KafkaMissing."""
    class_path = jars()
    (_HOME / "log4j2.properties").write_text(_LOG4J)
    return class_path


def single_node(port: int, data: Path) -> dict[str, str]:
    """Return the settings of one process that is both broker and controller."""
    address, quorum = f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{quorum}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{quorum}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "offsets.topic.replication.factor": "1",
    }


def server_command(
    class_path: str, config: Path, values: Mapping[str, str], jvm: Sequence[str] = ()
) -> list[str]:
    """Write the server's settings, format its directory, and return the command that runs it."""
    config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    classes = ["-cp", class_path]
    tool = ["java", *LIGHT_JVM, *classes, "kafka.tools.StorageTool"]
    tool += ["format", "-t", "4L6g3nShT-eMCtK--X86sw"]
    subprocess.run([*tool, "-c", str(config)], check=True, capture_output=True, timeout=_START_S)
    return ["java", "-Xms1G", "-Xmx1G", *jvm, *classes, "kafka.Kafka", str(config)]


@contextmanager
def kafka(
    settings: Mapping[str, str],
    *,
    users: Mapping[str, str] | None = None,
    plugins: str = "",
    jvm: Sequence[str] = (),
) -> Iterator[KafkaProcess]:
    """Start Kafka with these settings in addition to those of a single node. users: names and
    passwords for PLAIN on a separate SASL_PLAINTEXT listener. plugins: class path of additional
    classes. jvm: additional Java options. Raises KafkaMissing.
    """
    class_path = f"{prepared()}:{plugins}" if plugins else prepared()
    port, sasl_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-kafka-") as directory:
        root = Path(directory)
        values = single_node(port, root / "data") | settings
        if users:
            values = _with_users(values, sasl_port, users)
        command = server_command(class_path, root / "server.properties", values, jvm)
        address, log = f"127.0.0.1:{port}", root / "kafka.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            try:
                until_served(process, address)
                yield KafkaProcess(address, log, sasl_port)
            finally:
                process.kill()
                process.wait()


def _with_users(
    values: Mapping[str, str], sasl_port: int, users: Mapping[str, str]
) -> dict[str, str]:
    """Add a listener on which users log in with PLAIN, or with SCRAM and delegation tokens."""
    address = f",SASL_PLAINTEXT://127.0.0.1:{sasl_port}"
    module = "org.apache.kafka.common.security.{}LoginModule required"
    known = "".join(f' user_{user}="{password}"' for user, password in users.items())
    listener = "listener.name.sasl_plaintext"
    return {
        **values,
        "listeners": values["listeners"] + address,
        "advertised.listeners": values["advertised.listeners"] + address,
        "listener.security.protocol.map": values["listener.security.protocol.map"]
        + ",SASL_PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{listener}.plain.sasl.jaas.config": f"{module.format('plain.Plain')}{known};",
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{module.format('scram.Scram')};",
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{module.format('scram.Scram')};",
    }


def until_served(process: "subprocess.Popen[bytes]", address: str) -> None:
    """Wait until a broker responds. Raises RuntimeError if its process ends, or after 120 s."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(
        {"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 200}
    )
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            admin.list_topics(timeout=1)
        except KafkaException:
            continue
        return
    raise RuntimeError(f"{process.args!r} did not start")
