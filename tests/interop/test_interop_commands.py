"""Kafka's command line tools answer for Penstock as for Apache Kafka 4.2: `commands.py` lists the
commands and the differences.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.interop.commands import COMMANDS, FILES, TOOLS, Command, normal
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.java_tools import ToolRunner, tool_runner

NODE_ID = 1
"""Of the only broker on both sides."""


@pytest.fixture(scope="module")
def tools(java: JavaHome) -> Iterator[ToolRunner]:
    with tool_runner(java) as runner:
        yield runner


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path / "cluster", brokers=0) as cluster:
        await cluster.start_broker(NODE_ID)
        yield cluster


def test_every_tool_is_tested() -> None:
    assert {command.tool for command in COMMANDS} == TOOLS.keys()


async def test_tools_answer_as_with_kafka(
    cluster: Cluster, peer: str, tools: ToolRunner, tmp_path: Path
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    found: list[str] = []
    for command in COMMANDS:
        answers = [
            await asyncio.to_thread(_run, tools, command, address, tmp_path)
            for address in (peer, cluster.bootstrap)
        ]
        found += _complaints(command, *answers)
    assert not found, "\n".join(found)


def _run(tools: ToolRunner, command: Command, address: str, directory: Path) -> list[str]:
    """Return exit code and normal output."""
    done = tools.run(
        TOOLS[command.tool],
        command.arguments(address, str(directory)),
        stdin=command.stdin,
    )
    return [f"exit code {done.exit_code}", *normal(command, done.output, address)]


def _complaints(command: Command, expected: list[str], found: list[str]) -> Iterator[str]:
    answers = "\n    ".join(("", "of Kafka:", *expected, "of Penstock:", *found))
    if not command.differs and found != expected:
        yield f"{command.line}: the answers differ:{answers}"
    elif command.differs and found == expected:
        yield f"{command.line}: no longer differs ({command.differs})"
    elif command.says not in "\n".join(found):
        yield f"{command.line}: no {command.says!r} in the answer:{answers}"
