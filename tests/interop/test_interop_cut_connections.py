"""Repeatedly cut the connections of Java, Go and Node.js group members: they reconnect and continue
without errors or rebalances.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.conversation import alter_configs
from tests.support.cut_connections import (
    GROUP,
    TOPIC,
    CutCluster,
    Program,
    cut_cluster,
    run_through_cuts,
)
from tests.support.java import JVM, JavaHome, running
from tests.support.kafkajs import install_kafkajs
from tests.support.missing import built
from tests.support.npm import NODE
from tests.support.waiting import until

ROOT: Final = Path(__file__).parents[2]
CLIENTS: Final = Path(__file__).parent / "clients"
BUILD_S: Final = 900
GROUP_RESOURCE: Final = 32
POOLED_COMMITS: Final = 100


@pytest.fixture
async def cut(tmp_path: Path) -> AsyncIterator[CutCluster]:
    async with cut_cluster(
        tmp_path,
        group_consumer_min_heartbeat_interval_ms=100,
        group_consumer_heartbeat_interval_ms=100,
        group_share_min_heartbeat_interval_ms=100,
        group_share_heartbeat_interval_ms=100,
    ) as cluster:
        config = {"share.auto.offset.reset": "earliest"}
        group = (GROUP_RESOURCE, GROUP)
        found = await asyncio.to_thread(alter_configs, cluster.direct, group, config)
        assert found == (0, None)
        yield cluster


@pytest.fixture(scope="module")
def go_members() -> str:
    """Return the path of the program; compile it if it is missing."""
    return str(built("ensure-go-members.sh", BUILD_S))


@pytest.mark.parametrize(
    "protocol",
    [
        "consumer",
        pytest.param("classic", marks=pytest.mark.long),
        pytest.param("share", marks=pytest.mark.long),
    ],
)
async def test_java_members_survive_cut_connections(
    cut: CutCluster, java: JavaHome, tmp_path: Path, protocol: str
) -> None:
    java.compile(CLIENTS / "Members.java")
    program = (*JVM, "-cp", java.class_path, "Members", protocol, cut.bootstrap, TOPIC, GROUP)
    await run_through_cuts(cut, program, tmp_path / "log", shares=protocol == "share")


@pytest.mark.long
@pytest.mark.parametrize(
    "client", ["franz-go", "franz-go-consumer", "franz-go-share", "sarama", "kafka-go"]
)
async def test_go_members_survive_cut_connections(
    cut: CutCluster, go_members: str, tmp_path: Path, client: str
) -> None:
    program = (go_members, client, cut.bootstrap, TOPIC, GROUP)
    await run_through_cuts(
        cut,
        program,
        tmp_path / "log",
        shares=client == "franz-go-share",
        rejoins=client == "kafka-go",  # its generations end with their connection
    )


@pytest.mark.long
async def test_commits_over_pooled_connections_succeed(
    cut: CutCluster, go_members: str, tmp_path: Path
) -> None:
    """A kafka-go client sends commits over any of its connections, including older ones."""
    command = (go_members, "kafka-go-pool", cut.bootstrap, TOPIC, GROUP)
    with running(*command, log=tmp_path / "log") as process:
        program = Program(process, tmp_path / "log")

        def is_over() -> bool:
            program.read()
            return bool(program.errors) or min(program.committed) >= POOLED_COMMITS

        await until(is_over)
        assert not program.errors, program.output()


async def test_kafkajs_members_survive_cut_connections(cut: CutCluster, tmp_path: Path) -> None:
    program = (NODE, CLIENTS / "kafkajs-members.js", install_kafkajs())
    await run_through_cuts(cut, (*program, cut.bootstrap, TOPIC, GROUP), tmp_path / "log")
