"""Collect the names that the docs may use: settings, metrics, commands, options, ports, variables
and alerts.

Names of Penstock are read from their definitions. Names of other projects are in allowlists, with
the project.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml
from typer.core import TyperCommand, TyperGroup

from penstock.controller.metadata.topic_configs import TOPIC_CONFIGS
from penstock.deploy.cli.app import app
from penstock.deploy.cli.lazy import OUTPUT_FORMS, commands_of
from penstock.deploy.node.config.definition import (
    ROLES,
    flag_of,
    settings_of,
    variable_of,
)
from penstock.deploy.node.config.sources import (
    CONFIG_FLAG,
    FOREIGN_VARIABLES,
    PREFIX,
    SET_FLAG,
)
from penstock.deploy.node.metrics.table import METRICS
from penstock.testing.plugin import _OPTIONS as PLUGIN_OPTIONS
from tests.tidy.repository import ROOT, files, sources, text

Command = TyperCommand | TyperGroup
CHART = ROOT / "helm" / "penstock"

FOREIGN_SETTINGS = {
    "application.id": "Kafka Streams",
    "auto.offset.reset": "Kafka clients",
    "bootstrap.servers": "Kafka clients",
    "buffer.memory": "Kafka clients",
    "client.rack": "Kafka clients",
    "compression.type": "Kafka clients",
    "delivery.timeout.ms": "Kafka clients",
    "enable.auto.commit": "Kafka clients",
    "enable.metrics.push": "Kafka clients",
    "enable.idempotence": "Kafka clients",
    "fetch.max.bytes": "Kafka clients",
    "fetch.max.wait.ms": "Kafka clients",
    "fetch.min.bytes": "Kafka clients",
    "fetch.queue.backoff.ms": "librdkafka",
    "group.id": "Kafka clients",
    "group.instance.id": "Kafka clients",
    "group.protocol": "Kafka clients",
    "group.remote.assignor": "Kafka clients",
    "heartbeat.interval.ms": "Kafka clients",
    "isolation.level": "Kafka clients",
    "key.separator": "the console tools of Kafka",
    "linger.ms": "Kafka clients",
    "max.block.ms": "Kafka clients",
    "max.partition.fetch.bytes": "Kafka clients",
    "max.poll.records": "Kafka clients",
    "max.request.size": "Kafka clients",
    "metadata.max.age.ms": "Kafka clients",
    "parse.key": "the console tools of Kafka",
    "partition.assignment.strategy": "Kafka clients",
    "print.key": "the console tools of Kafka",
    "request.timeout.ms": "Kafka clients",
    "retries": "Kafka clients",
    "sasl.jaas.config": "Kafka clients",
    "sasl.mechanism": "Kafka clients",
    "sasl.oauthbearer.assertion.claim.aud": "Kafka clients",
    "sasl.oauthbearer.assertion.claim.iss": "Kafka clients",
    "sasl.oauthbearer.assertion.claim.sub": "Kafka clients",
    "sasl.oauthbearer.assertion.file": "Kafka clients",
    "sasl.oauthbearer.assertion.jwt.template.file": "librdkafka",
    "sasl.oauthbearer.assertion.private.key.file": "Kafka clients",
    "sasl.oauthbearer.client.id": "librdkafka",
    "sasl.oauthbearer.client.secret": "librdkafka",
    "sasl.oauthbearer.grant.type": "librdkafka",
    "sasl.oauthbearer.jwt.retriever.class": "Kafka clients",
    "sasl.password": "librdkafka",
    "sasl.username": "librdkafka",
    "security.protocol": "Kafka clients",
    "session.timeout.ms": "Kafka clients",
    "share.acknowledgement.mode": "Kafka clients",
    "share.acquire.mode": "Kafka clients",
    "socket.connection.setup.timeout.ms": "librdkafka",
    "ssl.truststore.location": "Kafka clients",
    "ssl.truststore.type": "Kafka clients",
    "transaction.timeout.ms": "Kafka clients",
    "transactional.id": "Kafka clients",
    "service.name": "OpenTelemetry",
    "server.properties": "the configuration file of Apache Kafka",
}
"""Settings of other projects. Spark's begin with `spark.` and need no entry. `kafka.` followed by a
setting of Kafka clients is also valid, because Spark's Kafka source and sink accept it.
"""

FOREIGN_ARGUMENTS = {
    "max_batch_size": "aiokafka",
    "retry_backoff_ms": "aiokafka and kafka-python",
}
"""Arguments of Python functions of other projects."""

FOREIGN_FLAGS = {
    "--api-versions": "helm template",
    "--bootstrap-server": "Kafka's tools",
    "--command-config": "Kafka's tools",
    "--describe": "Kafka's tools",
    "--reset-offsets": "Kafka's tools",
    "--topic": "Kafka's tools",
    "--to-offset": "Kafka's tools",
    "--consumer.config": "Kafka's tools",
    "--cascade": "kubectl",
    "--from-literal": "kubectl",
    "--create-namespace": "helm",
    "--reuse-values": "helm",
    "--set-json": "helm",
    "--set-string": "helm",
    "--set-file": "helm",
    "--conf": "spark-submit",
    "--archives": "spark-submit",
    "--py-files": "spark-submit",
    "--descriptor_set_out": "protoc",
    "--include_imports": "protoc",
    "--build-arg": "docker",
    "--network": "docker",
    "--rm": "docker",
    "--web.enable-otlp-receiver": "Prometheus",
    "--extra-index-url": "pip",
    "--import-mode": "pytest",
}
"""Options that may be in code spans. In code blocks only commands of Penstock are checked."""

FOREIGN_PORTS = {
    3000: "Grafana",
    4317: "OTLP over gRPC",
    4318: "OTLP over HTTP",
    4566: "LocalStack",
    7070: "versitygw",
    7077: "a Spark master",
    8333: "SeaweedFS",
    9000: "MinIO",
    9090: "Prometheus",
    15002: "a Spark Connect server",
}
EXAMPLE_PORTS = {
    19092: "where docs/tutorials/first-cluster.md begins if 9092 is taken",
    19100: "a controller in the output of docs/how-to/replace-a-controller.md",
    19101: "a controller in the output of docs/how-to/replace-a-controller.md",
    19102: "a controller in the output of docs/how-to/replace-a-controller.md",
}
CHOSEN_PORTS = range(20_000, 65_536)
"""Free ports that a machine chose, as seen in sample output, and node ports of Kubernetes."""

PLACEHOLDERS = {
    "CLAIM_OF_CONTROLLER_2": "the name of a volume claim, in docs/how-to/kubernetes.md",
    "MARKER_VERSION": (
        "the version of a delete marker in S3, in docs/how-to/repair-lost-wal-slots.md"
    ),
    "NEW_VERSION": "the tag of an image, in docs/how-to/kubernetes.md",
}
"""Placeholders in commands that readers replace."""

POLICY_STATEMENTS = {
    "PenstockLeases": "the Sid of a statement in an IAM policy",
    "PenstockList": "the Sid of a statement in an IAM policy",
    "PenstockObjects": "the Sid of a statement in an IAM policy",
    "PenstockRead": "the Sid of a statement in an IAM policy",
}
"""Names in docs/how-to/s3-permissions.md that look like alerts."""

FOREIGN_VARIABLES_BEGIN = (
    "AWS_",
    "GATEWAY_",
    "JAVA_",
    "KAFKA_",
    "OTEL_",
    "PIP_",
    "PYSPARK_",
    "PYTHON",
    "SPARK_",
)


def the_file(name: str) -> Path:
    """Return the one file of this name, wherever it is."""
    (found,) = (path for path in files() if path.name == name)
    return found


@cache
def settings() -> frozenset[str]:
    """Return the settings of nodes and of topics."""
    return frozenset({name for role in ROLES for name in settings_of(role)} | set(TOPIC_CONFIGS))


@cache
def setting_of_field() -> dict[str, str]:
    """Return the name of each setting by the field that holds it in Python."""
    return {
        field.field: name
        for role in ROLES
        for name, field in settings_of(role).items()
        if field.field != name
    }


@cache
def chart_values() -> frozenset[str]:
    """Return the values of the Helm chart with dots between levels, and the levels."""
    return frozenset(_dotted(yaml.safe_load((CHART / "values.schema.json").read_text())))


def _dotted(schema: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, below in schema.get("properties", {}).items():
        yield before + name
        yield from _dotted(below, f"{before}{name}.")


@cache
def quoted() -> frozenset[str]:
    """Return the names between quotes in the packages: log events, attributes of spans, properties
    of tables.
    """
    return frozenset(
        name for path in sources() for name in re.findall(r"\"([a-z][\w.]*)\"", text(path))
    )


@cache
def words() -> frozenset[str]:
    """Return every word of the sources, the tests and the chart, except those of this module, whose
    allowlists would make any name known.
    """
    read = {".py", ".yaml", ".yml", ".tpl", ".toml", ".sh", ".pyi", ""}
    return frozenset(
        word
        for path in files()
        if path.suffix in read and path != Path(__file__)
        for word in re.findall(r"[A-Za-z]\w+", text(path))
    )


@cache
def metrics() -> frozenset[str]:
    """Return the names of the series, and of those that the chart's recording rules produce."""
    ends = {"counter": ("",), "gauge": ("",), "histogram": ("", "_bucket", "_count", "_sum")}
    rules = "\n".join(
        text(path)
        for path in files()
        if path.is_relative_to(CHART) and path.suffix in {".yaml", ".tpl"}
    )
    return frozenset(metric.name + end for metric in METRICS for end in ends[metric.kind]) | set(
        re.findall(r"record: (\w+)", rules)
    )


@cache
def labels() -> frozenset[str]:
    """Return the labels of metrics."""
    return frozenset(label for metric in METRICS for label in metric.labels)


@cache
def plugin_names() -> frozenset[str]:
    """Return the options and fixtures of the pytest plugin."""
    return frozenset(
        {f"penstock_{name.replace('-', '_')}" for name, _ in PLUGIN_OPTIONS} | {"penstock_cluster"}
    )


@cache
def alerts() -> frozenset[str]:
    """Return the names of the chart's alerts."""
    return frozenset(
        name for path in CHART.rglob("*.yaml") for name in re.findall(r"alert: (\w+)", text(path))
    )


@cache
def classes() -> frozenset[str]:
    """Return the names of all classes, and the names under which modules import them."""
    return frozenset(
        name
        for path in sources()
        for name in re.findall(r"(?:^\s*class| as) (\w+)", text(path), re.MULTILINE)
    )


@cache
def variables() -> frozenset[str]:
    """Return the environment variables that begin with PENSTOCK_."""
    of_settings = {variable_of(name) for role in ROLES for name in settings_of(role)}
    in_sources = {
        name
        for path in (*sources(), *CHART.rglob("*.yaml"))
        for name in re.findall(rf"\b{PREFIX}[A-Z_]+\b", text(path))
    }
    return frozenset(of_settings | {PREFIX + name for name in FOREIGN_VARIABLES} | in_sources)


@cache
def ports() -> frozenset[int]:
    """Return the default ports of settings and commands, and the ports of image and chart."""
    of_settings = " ".join(
        str(field.default) for role in ROLES for field in settings_of(role).values()
    )
    of_commands = {
        parameter.default
        for command in leaves(root())
        for parameter in command.params
        if parameter.name == "port"
    }
    deployed = "\n".join(
        (text(the_file("Dockerfile")), *(text(path) for path in CHART.rglob("*.yaml")))
    )
    found = re.findall(r":(\d{4,5})\b", of_settings) + re.findall(r"[Pp]ort: (\d{4,5})\b", deployed)
    exposed = [port for line in re.findall(r"EXPOSE (.*)", deployed) for port in line.split()]
    return frozenset({int(port) for port in (*found, *exposed, *of_commands)} - {0})


@cache
def root() -> TyperGroup:
    """Return the `penstock` command."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def leaves(command: Command) -> Iterator[Command]:
    """Yield the command and all below it."""
    yield command
    if isinstance(command, TyperGroup):
        for below in commands_of(command).values():
            assert isinstance(below, Command)
            yield from leaves(below)


def flags_of(command: Command) -> set[str]:
    """Return the options of one command."""
    given = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }
    forms = OUTPUT_FORMS.keys() if "--output" in given else frozenset[str]()
    return given | {"--help", "-h"} | forms


def node_flags(role: str) -> set[str]:
    """Return the options of `penstock broker` and `penstock controller`."""
    return {flag_of(name) for known in ROLES if known == role for name in settings_of(known)} | {
        CONFIG_FLAG,
        SET_FLAG,
        "--help",
        "-h",
    }


@cache
def all_flags() -> frozenset[str]:
    """Return the options of all commands, of the pytest plugin, and of modules that are run with
    `python -m`.
    """
    found = {flag for command in leaves(root()) for flag in flags_of(command)}
    found |= {flag for role in ROLES for flag in node_flags(role)}
    found |= {f"--penstock-{name}" for name, _ in PLUGIN_OPTIONS}
    programs = [text(path) for path in files() if path.suffix == ".py"]
    return frozenset(
        found
        | {
            flag
            for program in programs
            for flag in re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", program)
        }
    )


@cache
def make_targets() -> frozenset[str]:
    """Return the targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z][a-z-]*):", text(ROOT / "Makefile"), re.MULTILINE))
