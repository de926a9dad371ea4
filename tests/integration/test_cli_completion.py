"""Complete commands in a real bash with names from a real cluster; parse every output format."""

import asyncio
import csv
import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TopicPartition
from typer.testing import CliRunner

from penstock.deploy.cli import completing
from penstock.deploy.cli.__main__ import COMPLETE
from penstock.deploy.cli.app import app
from penstock.deploy.cli.lazy import completion_module
from tests.support.cli import Cli
from tests.support.clients import confluent_consumer, create_topic
from tests.support.cluster import Cluster
from tests.support.terminal import Terminal
from tests.support.waiting import PATIENCE_S, wait_until

SHELLS = {"bash": "complete -o default -F", "zsh": "compdef", "fish": "complete --command penstock"}

pytestmark = pytest.mark.cluster(topics={"orders": 1, "ordinary": 1, "other": 1})


class Shell:
    """Bash with the script that `penstock completion bash` prints."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PENSTOCK_BOOTSTRAP": bootstrap,
            "XDG_CACHE_HOME": str(directory / "cache"),
            "XDG_CONFIG_HOME": str(directory / "config"),
        }
        script = subprocess.run(
            ("penstock", "completion", "bash"),
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self._script = directory / "completion.bash"
        self._script.write_text(script.stdout)

    def complete(self, *words: str) -> list[str]:
        """Return the completions that bash offers for the last word. The command offers no names if
        the cluster does not respond within 1 s, so retry until there are some.
        """
        found: list[str] = wait_until(lambda: self.complete_once(*words))
        return found

    def complete_once(self, *words: str) -> list[str]:
        program = (
            f'source {self._script}; COMP_WORDS=(penstock "$@"); COMP_CWORD=$#;'
            ' _penstock_completion penstock; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        found = subprocess.run(
            ("bash", "-c", program, "bash", *words),
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert not found.stderr, found.stderr
        return found.stdout.split()

    def terminal(self) -> Terminal:
        """Return bash at its prompt."""
        program = ("bash", "--norc", "--noprofile", "-i")
        terminal = Terminal(program, {**self._environment, "PS1": "$ "})
        terminal.type(f"source {self._script}; echo re''ady\n")
        terminal.until("ready")
        return terminal


def _commit(bootstrap: str, group: str) -> None:
    with closing(confluent_consumer(bootstrap, group)) as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
async def test_bash_completes_names_from_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    shell = await asyncio.to_thread(Shell, tmp_path, cluster.bootstrap)

    async def completed(*words: str) -> list[str]:
        return await asyncio.to_thread(shell.complete, *words)

    assert await completed("trans") == ["transactions"]
    assert await completed("topics", "des") == ["describe"]
    assert await completed("topics", "describe", "ord") == ["orders", "ordinary"]
    assert await completed("log-dirs", "describe", "--broker", "") == ["0"]
    alter = ("configs", "alter", "--topic", "orders", "--set", "retention.b")
    assert await completed(*alter) == ["retention.bytes="]
    assert await completed("configs", "describe", "--topic", "=", "ord") == ["orders", "ordinary"]
    await asyncio.to_thread(create_topic, cluster.bootstrap, "ordered")
    (cached,) = (path for path in _cached(tmp_path) if path.read_text().startswith("orders"))
    before = cached.read_bytes()

    def from_cache() -> bool:
        cached.write_bytes(before)  # reset the age of the cache file
        return shell.complete_once("consume", "ord") == ["orders", "ordinary"]

    await asyncio.to_thread(wait_until, from_cache)
    await asyncio.to_thread(_commit, cluster.bootstrap, "workers")
    assert await completed("groups", "describe", "wor") == ["workers"]
    unreachable = ("topics", "describe", "-b", "127.0.0.1:1", "ord")
    assert await asyncio.to_thread(shell.complete_once, *unreachable) == []


def _cached(directory: Path) -> list[Path]:
    """Return the cache files with names from the cluster."""
    return list((directory / "cache").rglob("completion/*"))


ORD = ("orders", "ordinary")
COMPLETED = (
    ("balance --topics ord", ORD),
    ("compact ord", ORD),
    ("configs alter --broker-logger 0 --set penstock.broker.gr", ("penstock.broker.groups=",)),
    ("configs alter --client-metrics slow --delete inter", ("interval.ms",)),
    ("configs alter --group workers --set consumer.session", ("consumer.session.timeout.ms=",)),
    ("configs describe --broker-logger ", ("0",)),
    ("configs describe --client-metrics s", ("slow",)),
    ("configs describe --group wor", ("workers",)),
    (
        "configs alter --topic orders --set retention.ms=5 --set retention.b",
        ("retention.bytes=",),
    ),
    ("consume orders --group wor", ("workers",)),
    ("groups delete other wor", ("workers",)),
    ("groups delete-offsets workers --topic ord", ORD),
    ("groups reset-offsets wor", ("workers",)),
    ("produce ord", ORD),
    ("reassign trace orders", ("orders-0",)),
    ("snapshots create nightly --topics ord", ORD),
    ("snippets --topic ord", ORD),
    ("sql --framed ord", ORD),
    ("sql --message ord", ("orders=", "ordinary=")),
    ("sql --schema ord", ("orders=", "ordinary=")),
    ("streams describe ord", ORD),
    ("table sync ord", ORD),
    ("topics alter ord", ORD),
    ("topics delete ord", ORD),
    ("topics delete-records ord", ORD),
    ("topics fork ord", ORD),
    ("topics offsets other ord", ORD),
    ("topics undelete ", ("gone",)),
    ("topics undelete --records ord", ORD),
    ("acls add --topic ord", ORD),
    ("acls list --group wor", ("workers",)),
    ("transactions find-hanging --topic ord", ORD),
)


async def test_commands_that_accept_names_complete_them(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the command in this process, with the variables that the bash script sets."""
    monkeypatch.setattr(completing, "DEADLINE_S", PATIENCE_S)
    completion_module().completion_init()
    cli = Cli(cluster, tmp_path)
    await asyncio.to_thread(_commit, cluster.bootstrap, "workers")
    await cli.run("configs", "alter", "--client-metrics", "slow", "--set", "interval.ms=60000")
    await cli.run("topics", "create", "gone", "--config", "penstock.delete.grace.ms=3600000")
    await cli.run("topics", "delete", "gone", "--yes")

    def offered(line: str) -> list[str]:
        words = ["penstock", *line.split(" ")]
        variables = {
            COMPLETE: "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "PENSTOCK_BOOTSTRAP": cluster.bootstrap,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        return CliRunner().invoke(app, prog_name="penstock", env=variables).output.split()

    for line, names in COMPLETED:
        assert await asyncio.to_thread(offered, line) == list(names), line


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
async def test_completion_works_while_typing_in_a_terminal(
    cluster: Cluster, tmp_path: Path
) -> None:
    shell = await asyncio.to_thread(Shell, tmp_path, cluster.bootstrap)
    terminal = await asyncio.to_thread(shell.terminal)

    def is_shown(typed: str, shown: str) -> bool:
        """Type a line, then delete it. Bash reads the next line only after it has completed this
        one.
        """
        terminal.type(f"penstock {typed}")
        terminal.type("\x15echo en''ded\n")
        return shown in terminal.until("ended")

    try:
        for typed, shown in (
            ("configs alter --topic=oth\t--set retention.b\t5", "=other --set retention.bytes=5"),
            ("topics offsets ord\t\t", "\norders    ordinary"),
        ):
            await asyncio.to_thread(wait_until, partial(is_shown, typed, shown))
    finally:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.parametrize("shell", SHELLS)
async def test_every_shell_has_a_completion_script(shell: str) -> None:
    command = (sys.executable, "-m", "penstock.deploy.cli", "completion", shell)
    found = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True
    )
    assert SHELLS[shell] in found.stdout


async def test_all_output_formats_contain_the_same_data(cluster: Cluster, tmp_path: Path) -> None:
    cli = Cli(cluster, tmp_path)
    found = json.loads(await cli.run("topics", "list", "--json"))
    assert found == [
        {"name": name, "partitions": 1, "with_leader": 1}
        for name in ("orders", "ordinary", "other")
    ]
    assert json.loads(await cli.run("topics", "list", "--output", "json")) == found
    assert msgspec.yaml.decode(await cli.run("topics", "list", "-o", "yaml")) == found
    rows = list(csv.DictReader(io.StringIO(await cli.run("topics", "list", "-o", "csv"))))
    assert rows == [{key: str(value) for key, value in item.items()} for item in found]
    assert "orders" in await cli.run("topics", "list")
    (log_dir,) = json.loads(await cli.run("log-dirs", "describe", "--topic", "orders", "--json"))
    assert [item["topic"] for item in log_dir["partitions"]] == ["orders"]
    quorum = json.loads(await cli.run("quorum", "describe", "--json"))
    assert "LeaderId" in await cli.run("quorum", "describe", "--status")
    assert quorum["members"][0]["node_id"] == quorum["leader_id"]
    assert "would delete orders" in await cli.run("topics", "delete", "orders", "--dry-run")
    assert "orders" in await cli.run("topics", "list")
