"""Collect the names that the docs may mention from their definitions: settings, metrics, commands,
options, variables and alerts.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer
from typer.core import TyperCommand, TyperGroup

import penstock
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
from penstock.objectstore.config import RemoteConfig
from penstock.testing.plugin import _OPTIONS as PLUGIN_OPTIONS
from tests.tidy.repository import ROOT, files, sources, text

Command = TyperCommand | TyperGroup
CHART = ROOT / "helm" / "penstock"


@cache
def settings() -> frozenset[str]:
    """Return the settings of nodes and of topics."""
    return frozenset({name for role in ROLES for name in settings_of(role)} | set(TOPIC_CONFIGS))


@cache
def setting_of_field() -> dict[str, str]:
    """Return the name of each setting by its field name in Python."""
    return {
        field.field: name
        for role in ROLES
        for name, field in settings_of(role).items()
        if field.field != name
    }


@cache
def url_parameters() -> frozenset[str]:
    """Return the parameters that the store URLs of all clouds accept."""
    return frozenset(field.name for field in fields(RemoteConfig))


@cache
def chart_values() -> frozenset[str]:
    """Return the values of the Helm chart and their parents, with dots between levels."""
    return frozenset(_dotted(yaml.safe_load((CHART / "values.schema.json").read_text())))


def _dotted(schema: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, below in schema.get("properties", {}).items():
        yield before + name
        yield from _dotted(below, f"{before}{name}.")


@cache
def quoted() -> frozenset[str]:
    """Return the quoted names in the packages: log events, span attributes, table properties."""
    return frozenset(
        name for path in sources() for name in re.findall(r"\"([a-z][\w.]*)\"", text(path))
    )


@cache
def code_text() -> str:
    """Return the text of all sources, tests and configuration files."""
    read = {".py", ".yaml", ".yml", ".tpl", ".toml", ".sh", ".pyi", ".java", ".go", ".js", ""}
    return "\n".join(
        text(path)
        for path in files()
        if path.suffix in read and path.parent != Path(__file__).parent
    )


@cache
def words() -> frozenset[str]:
    """Return every word of the sources, the tests and the chart."""
    return frozenset(re.findall(r"[A-Za-z]\w+", code_text()))


@cache
def dotted_words() -> frozenset[str]:
    """Return every dotted name in the sources, the tests and the chart."""
    return frozenset(re.findall(r"[a-z][a-z0-9]*(?:\.[a-z][a-z0-9]*)+", code_text()))


@cache
def client_arguments() -> frozenset[str]:
    """Return the arguments of the Python clients, most of which are Kafka settings with
    underscores.
    """
    of_aiokafka = {
        name
        for client in (AIOKafkaConsumer, AIOKafkaProducer)
        for name in inspect.signature(client).parameters
    }
    return frozenset(of_aiokafka | {*KafkaConsumer.DEFAULT_CONFIG, *KafkaProducer.DEFAULT_CONFIG})


@cache
def reader_arguments() -> frozenset[str]:
    """Return the arguments of functions that read the store."""
    readers = (penstock.scan, penstock.sql, penstock.topics)
    return frozenset(name for reader in readers for name in inspect.signature(reader).parameters)


@cache
def metrics() -> frozenset[str]:
    """Return the names of all metrics, including those of the chart's recording rules."""
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
    """Return the metric labels."""
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
    """Return the names of all classes, and their import aliases."""
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
def root() -> TyperGroup:
    """Return the `penstock` command."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def leaves(command: Command) -> Iterator[Command]:
    """Yield the command and all its subcommands."""
    yield command
    if isinstance(command, TyperGroup):
        for below in commands_of(command).values():
            assert isinstance(below, Command)
            yield from leaves(below)


def flags_of(command: Command) -> set[str]:
    """Return the options of a single command."""
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
    """Return the options of all commands, of the pytest plugin, and of modules that run with
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
