"""Tutorials and how-to guides mention only existing commands, flags, settings, values, metrics, log
events, findings and S3 actions.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.main import get_command

from penstock.base.extras import DISTRIBUTION
from penstock.controller.api.callers import CallerRole
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.client_metrics import CLIENT_METRICS_CONFIGS
from penstock.controller.metadata.features import SUPPORTED
from penstock.controller.metadata.group_configs import GROUP_CONFIGS
from penstock.controller.metadata.topic_configs import TOPIC_CONFIGS
from penstock.deploy.cli.app import app
from penstock.deploy.cli.lazy import GLOBAL_OPTIONS, OUTPUT_FORMS
from penstock.deploy.doctor.findings import KINDS
from penstock.deploy.local.client_snippets import SNIPPETS
from penstock.deploy.node.config.definition import ROLES, Role, settings_of
from penstock.deploy.node.config.sources import from_flags
from penstock.deploy.node.metrics.table import METRICS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
GUIDES = sorted([*(DOCS / "tutorials").glob("*.md"), *(DOCS / "how-to").glob("*.md")])
CLIENT_SETTINGS = {
    "client.rack",
    "auto.offset.reset",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
    "batch.size",
    "sasl.jaas.config",
    "buffer.memory",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "enable.metrics.push",
    "fetch.queue.backoff.ms",
    "https.ca.location",
    "group.instance.id",
    "group.protocol",
    "heartbeat.interval.ms",
    "isolation.level",
    "kafka.isolation.level",
    "kafka.bootstrap.servers",
    "linger.ms",
    "max.poll.records",
    "num.standby.replicas",
    "retry.backoff.ms",
    "retry.ms",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.grant.type",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.token.endpoint.url",
    "security.protocol",
    "session.timeout.ms",
    "share.acquire.mode",
    "spark.driver.host",
    "spark.executor.memory",
    "spark.pyspark.python",
    "socket.connection.setup.timeout.ms",
}
FILES = (".json", ".jsonl", ".py", ".md", ".tar.gz", ".yaml", ".yml")
OTHER_FLAGS = {
    "--api-versions",
    "--archives",
    "--build-arg",
    "--cascade=orphan",
    "--web.enable-otlp-receiver",
}
"""Flags of Helm, Spark, buildah, kubectl and Prometheus."""
ATTRIBUTES = {"service.instance.id", "service.name"}
"""Resource attributes in OpenTelemetry."""
OF_THE_PIPELINE = {"flights.raw", "flights.clean", "flights.dead", "transforms.checked"}
"""Topics and functions in `examples/pipeline`."""
OTHER_NAMES = {
    "penstock-streams",
    "all-apis",
    "confluent-kafka",
    "docker-compose",
    "kafka-client",
    "kafka-configs",
    "kafka-consumer-groups",
    "kafka-python",
}
ACTIONS = {
    "get_async": {"s3:GetObject"},
    "get_range_async": {"s3:GetObject"},
    "head_async": {"s3:GetObject"},
    "put_async": {"s3:PutObject"},
    "delete_async": {"s3:DeleteObject"},
    "list": {"s3:ListBucket"},
}
"""The IAM action for each call of the S3 client."""
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

pages = pytest.mark.parametrize("page", GUIDES, ids=lambda path: path.stem)


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a language, without their indentation."""
    return [
        re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        for found in _FENCE.finditer(page.read_text())
        if found[2] == language
    ]


def names(page: Path, pattern: str) -> set[str]:
    """Return the code spans outside of code blocks that match the whole pattern."""
    text = _FENCE.sub("", page.read_text())
    return {name for name in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(pattern, name)}


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words after `penstock` of each command, in console blocks and code spans."""
    shown = [
        line
        for block in blocks(page, "console")
        for line in re.findall(r"^\$ (.*)", block.replace("\\\n", " "), re.MULTILINE)
    ]
    for line in [*shown, *names(page, "penstock .*")]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&")
        lexer.whitespace_split = True
        words = list(lexer)
        for at, word in enumerate(words):
            if word == "penstock" and (at == 0 or words[at - 1] in {"|", "--", "&&"}):
                rest = words[at + 1 :]
                ends = [index for index, other in enumerate(rest) if other in {"|", "&&", ";", ">"}]
                yield rest[: ends[0]] if ends else rest


def check_command(words: list[str]) -> None:
    """Raise if the command does not exist or lacks the flag."""
    if words[:1] in (["broker"], ["controller"]) and words[1:2] and words[1].startswith("-"):
        role: Role = "broker" if words[0] == "broker" else "controller"
        from_flags(role, words[1:])
        return
    command: Any = get_command(app)
    for word in words:
        is_group = hasattr(command, "list_commands")
        if not is_group or (word.startswith("-") and command.invoke_without_command):
            break
        if not word.startswith("-"):
            assert word in command.list_commands(None), f"there is no command {word}"
            command = command.get_command(None, word)
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= flags(command), words


def flags(command: Any) -> set[str]:
    found = {
        option
        for parameter in command.params
        for option in [*parameter.opts, *parameter.secondary_opts]
    } | {"-h", "--help", *GLOBAL_OPTIONS}
    return found | OUTPUT_FORMS.keys() if "--output" in found else found


def all_flags(command: Any) -> set[str]:
    """Return the flags of a command and of all its subcommands."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else ()
    return flags(command).union(*(all_flags(command.get_command(None, name)) for name in names))


def chart_values(path: str = "", node: Any = None) -> set[str]:
    """Return the dotted path of each value below a node of values.yaml, and of each subtree."""
    if not path:
        node = yaml.safe_load((ROOT / "helm" / "penstock" / "values.yaml").read_text())
    children = cast("dict[str, Any]", node) if isinstance(node, dict) else {}
    return {path}.union(
        *(chart_values(f"{path}.{name}".lstrip("."), child) for name, child in children.items())
    )


def test_guides_are_found() -> None:
    assert len(GUIDES) >= 19
    assert sum(1 for page in GUIDES for _ in commands(page)) > 90


@pytest.mark.parametrize(
    "line",
    ["broker --store", "nodes --colour", "frobnicate", "topics make x", "controller --node-ids 3"],
)
def test_nonexistent_commands_are_detected(line: str) -> None:
    with pytest.raises(Exception, match=r"."):
        check_command(line.split())


@pages
def test_commands_in_guides_exist(page: Path) -> None:
    for words in commands(page):
        check_command(words)
    found = {name.split()[0] for name in names(page, r"--[a-z].*")}
    assert found <= all_flags(get_command(app)) | OTHER_FLAGS


@pages
def test_settings_and_values_in_guides_exist(page: Path) -> None:
    known = (
        {name for role in ROLES for name in settings_of(role)}
        | set(TOPIC_CONFIGS)
        | set(GROUP_CONFIGS)
        | set(CLIENT_METRICS_CONFIGS)
        | {feature.name for feature in SUPPORTED}
        | ATTRIBUTES
        | OF_THE_PIPELINE
        | CLIENT_SETTINGS
        | chart_values()
    )
    dotted = names(page, r"[a-z]+(\.[a-zA-Z]+)+(=[^ ]*)?")
    files = {name for name in dotted if name.endswith(FILES)}
    assert {
        name.partition("=")[0] for name in dotted - files if not name.startswith("penstock.")
    } <= known | {"ca.crt"}


@pages
def test_metrics_and_findings_in_guides_exist(page: Path) -> None:
    assert names(page, r"penstock_\w+") - {"penstock_node_info"} <= {
        metric.name for metric in METRICS
    }
    known = {DISTRIBUTION} | set(KINDS) | set(SNIPPETS) | OTHER_NAMES | _certificate_names()
    assert names(page, r"[a-z]+(-[a-z]+)+") <= known


def _certificate_names() -> set[str]:
    rules = ControllerConfig(data_dir="unused").name_rules
    return {name for role in CallerRole for name in rules.of(role)}


@pages
def test_examples_can_be_parsed(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")
    for block in blocks(page, "json"):
        for text in [block] if block.startswith("{\n") else block.splitlines():
            json.loads(text)
    for block in blocks(page, "yaml"):
        yaml.safe_load(block)
    for block in blocks(page, "toml"):
        tomllib.loads(block)


@pages
def test_files_and_linked_pages_exist(page: Path) -> None:
    for name in names(page, r"(deploy|helm|docs|benchmarks)/[\w/.-]+"):
        assert (ROOT / name).exists(), name
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
        path = (page.parent / target).resolve() if target else page
        if path in GUIDES or "adr" in path.parts:
            assert path.is_file(), target
            assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_log_events_in_runbooks_exist() -> None:
    code = "\n".join(
        path.read_text()
        for package in ("objectstore", "stream", "broker", "controller", "deploy/node")
        for path in (ROOT / package).rglob("*.py")
    )
    reported = set[str]().union(
        *(
            names(DOCS / "how-to" / name, r"[a-z]+(_[a-z]+)+")
            for name in ("alerts.md", "monitor.md", "drain.md")
        )
    )
    reported = {
        name for name in reported if not name.startswith(("penstock_", "org_apache_kafka_"))
    } - {
        "put_if_absent",
        "app_kubernetes_io_component",
        "group_id",
    }
    assert len(reported) > 25
    assert not {event for event in reported if f'"{event}"' not in code}


def test_the_iam_policy_allows_all_calls_of_the_store_client() -> None:
    text = "".join((ROOT / "objectstore" / name).read_text() for name in ("remote.py", "s3.py"))
    calls = set(re.findall(r"\bobstore\)?\.(?!store\b)(\w+)", text))
    assert calls == set(ACTIONS)
    nodes, readers, *_ = [
        json.loads(block) for block in blocks(DOCS / "how-to" / "s3-permissions.md", "json")
    ]
    assert allowed(nodes) == set[str]().union(*ACTIONS.values())
    assert allowed(readers) == allowed(nodes)


def allowed(policy: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    for statement in policy["Statement"]:
        actions = statement["Action"]
        found |= {actions} if isinstance(actions, str) else set(actions)
    return found


def test_readme_and_first_tutorial_can_be_followed_together() -> None:
    """They use the same environment, and one cluster at a time. The tutorial's program prints keys,
    so all records written there have one.
    """
    readme, tutorial = (
        file.read_text() for file in (ROOT / "README.md", DOCS / "tutorials" / "first-cluster.md")
    )
    assert readme.count("~/first-cluster/.venv/bin/activate") == 2
    checkout = '"$HOME/penstock[local]"'
    assert "git clone URL ~/penstock" in readme
    assert checkout in readme
    assert checkout in tutorial
    assert readme.index("penstock sql") < readme.index("Press Ctrl-C") < readme.index("continues")
    assert tutorial.count("cd ~/first-cluster") == 2
    produced = [line for line in tutorial.splitlines() if "penstock produce" in line]
    assert len(produced) == 2
    assert all("--key-separator" in line for line in produced)
    assert "line ends with" not in readme, "`took=` follows"
