"""Kafka's command line tools print the same for Penstock as for Apache Kafka 4.2. `commands.py`
lists the commands and the known differences.
"""

import asyncio
import threading
import zipfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.stream.config import StreamConfig
from tests.interop.commands import (
    COMMANDS,
    FILES,
    LIVE_COMMANDS,
    NOT_RUN,
    SHARE_COMMANDS,
    STREAMS_COMMANDS,
    STREAMS_LIVE_COMMANDS,
    TOOLS,
    Command,
    normal,
)
from tests.support.clients import POLL_S, TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.hanging import produce_hanging
from tests.support.java import JavaHome, wait_while_running
from tests.support.java_tools import ToolRunner
from tests.support.streams_groups import StreamsTalk, counting
from tests.support.waiting import until

LIVE_TOPIC = "tools-live"
VERIFICATION = "kafka-replica-verification"
JARS = Path(__file__).parents[2] / "build" / "kafka" / "libs"


def test_every_kafka_tool_is_covered(java: JavaHome) -> None:
    """All classes with a `main` method in Kafka's tools jar are run or listed with a reason."""
    (jar,) = (Path(path) for path in JARS.glob("kafka-tools-4*.jar"))
    with zipfile.ZipFile(jar) as classes:
        mains = {
            name.removesuffix(".class").replace("/", ".")
            for name in classes.namelist()
            if name.endswith(".class") and _has_main(classes.read(name))
        }
    assert mains | {"kafka.admin.ConfigCommand"} == set(TOOLS.values()) | NOT_RUN.keys()
    commands = (*COMMANDS, *SHARE_COMMANDS)
    assert {command.tool for command in commands} | {VERIFICATION} == TOOLS.keys()


def _has_main(content: bytes) -> bool:
    """Return whether the constant pool of a class file contains `main` and its type."""
    return b"\x01\x00\x04main" in content and b"\x01\x00\x16([Ljava/lang/String;)V" in content


@pytest.mark.costly("more than 150 commands run on both sides")
async def test_tools_print_the_same_as_with_kafka(
    cluster: Cluster, peer: str, tools: ToolRunner, tmp_path: Path
) -> None:
    await _compare(COMMANDS, (peer, cluster.bootstrap), tools, tmp_path)


@pytest.mark.long
async def test_share_group_tools_print_the_same_as_with_kafka(
    cluster: Cluster, peer: str, tools: ToolRunner, tmp_path: Path
) -> None:
    await _compare(SHARE_COMMANDS, (peer, cluster.bootstrap), tools, tmp_path)


@pytest.mark.costly("the tool runs in a JVM of its own on both sides")
async def test_replica_verification_finds_no_difference(
    peer: str, java: JavaHome, tmp_path: Path
) -> None:
    """The tool runs until it is stopped, and queries every replica of a partition. It does not
    pause until all replicas have the records; a broker that is not the leader has them after their
    upload.
    """
    soon = StreamConfig(wal_linger_ms=0, block_age_max_ms=100)
    async with Cluster(tmp_path / "cluster", brokers=2, stream_config=soon) as cluster:
        for address, replicas in ((peer, 1), (cluster.bootstrap, 2)):
            await asyncio.to_thread(_verify_replicas, address, replicas, java, tmp_path)


def _verify_replicas(address: str, replicas: int, java: JavaHome, directory: Path) -> None:
    topic = NewTopic("verified", 1, replicas)
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([topic])["verified"].result(TIMEOUT_S)
    produce(address, "verified", [b"value"] * 4, (0,))
    log = directory / f"verification-{replicas}.log"
    arguments = ("--broker-list", address, "--topics-include", "verified", "--time", "-2")
    found = "max lag is 0 for partition verified-0 at offset 4 among 1 partitions"
    with java.application(
        TOOLS[VERIFICATION], *arguments, "--report-interval-ms", "500", log=log
    ) as process:
        wait_while_running(process, log, lambda: found in log.read_text())
    assert "Exception" not in log.read_text()


@pytest.mark.long
async def test_tools_print_the_same_as_with_kafka_while_clients_run(
    cluster: Cluster, peer: str, tools: ToolRunner, tmp_path: Path
) -> None:
    addresses = (peer, cluster.bootstrap)
    with ExitStack() as stack:
        for address in addresses:
            await asyncio.to_thread(create_topic, address, LIVE_TOPIC, 2)
            await asyncio.to_thread(produce, address, LIVE_TOPIC, [b"value"] * 4, (0, 1))
            for group, protocol in (("tools-live", "classic"), ("tools-live-next", "consumer")):
                member = await asyncio.to_thread(Member, address, group, protocol)
                stack.callback(member.close)
                await until(lambda member=member: member.has_committed)
            await asyncio.to_thread(_begin_transaction, address, stack)
        await _compare(LIVE_COMMANDS, addresses, tools, tmp_path)


@pytest.mark.long
async def test_streams_tools_print_the_same_as_with_kafka(
    cluster: Cluster, peer: str, tools: ToolRunner, tmp_path: Path
) -> None:
    addresses = (peer, cluster.bootstrap)
    async with AsyncExitStack() as stack:
        for address in addresses:
            instances = await asyncio.to_thread(Instances, address, "tools-streams", "tools-lines")
            stack.push_async_callback(asyncio.to_thread, instances.close)
            await until(lambda instances=instances: instances.are_settled)
        await _compare(STREAMS_LIVE_COMMANDS, addresses, tools, tmp_path)
    await _compare(STREAMS_COMMANDS, addresses, tools, tmp_path)


class Instances(threading.Thread):
    """Two instances of an application that counts words. The group has committed 5 of 6 records of
    each partition.
    """

    def __init__(self, address: str, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.are_settled = False
        self._group = group
        self._is_over = threading.Event()
        self._talk = StreamsTalk(address)
        self._talk.create(topic, 2)
        produce(address, topic, [b"value"] * 12, (0, 1))
        self._talk.coordinate(group)
        for index in (0, 1):
            assert self._talk.commit(group, "", -1, index, topic) == 0
        for name in ("a", "b"):
            self._talk.join(group, name, counting(group, topic))
        self.start()

    def run(self) -> None:
        self._talk.settle(self._group, "a", "b")
        self.are_settled = True
        while not self._is_over.wait(POLL_S):
            for name in ("a", "b"):
                self._talk.own(self._group, name)
        for name in ("a", "b"):
            self._talk.beat(self._group, name, -1)

    def close(self) -> None:
        """Let the members leave. Must not run on the event loop, which serves the cluster."""
        self._is_over.set()
        self.join(TIMEOUT_S)
        self._talk.close()


class Member(threading.Thread):
    """A group member that polls and commits."""

    def __init__(self, address: str, group: str, protocol: str) -> None:
        super().__init__(daemon=True)
        self.has_committed = False
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "group.protocol": protocol,
                "client.id": "member",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._is_over = threading.Event()
        self._consumer.subscribe([LIVE_TOPIC])
        self.start()

    def run(self) -> None:
        read = 0
        while not self._is_over.is_set():
            message = self._consumer.poll(POLL_S)
            if message is None or message.error() is not None:
                continue
            self._consumer.commit(message, asynchronous=False)
            read += 1
            self.has_committed = read == 4
        self._consumer.close()

    def close(self) -> None:
        self._is_over.set()
        self.join(TIMEOUT_S)


def _begin_transaction(address: str, stack: ExitStack) -> None:
    """Leave a transaction with one record open."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "tools-open"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(LIVE_TOPIC, b"open", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    stack.callback(producer.purge)


async def _compare(
    commands: tuple[Command, ...], addresses: tuple[str, str], tools: ToolRunner, directory: Path
) -> None:
    """Run each command against both sides, Kafka first."""
    for name, content in FILES.items():
        (directory / name).write_text(content)
    found: list[str] = []
    for command in commands:
        responses = [
            await asyncio.to_thread(_run, tools, command, address, directory)
            for address in addresses
        ]
        found += _complaints(command, *responses)
    assert not found, "\n".join(found)


def _run(tools: ToolRunner, command: Command, address: str, directory: Path) -> list[str]:
    """Return the exit code and the normalized output."""
    done = tools.run(
        TOOLS[command.tool],
        command.arguments(address, str(directory)),
        stdin=command.stdin,
    )
    return [f"exit code {done.exit_code}", *normal(command, done.output, address)]


def _complaints(command: Command, expected: list[str], found: list[str]) -> Iterator[str]:
    responses = "\n    ".join(("", "of Kafka:", *expected, "of Penstock:", *found))
    if not command.differs and found != expected:
        yield f"{command.line}: the responses differ:{responses}"
    elif command.differs and found == expected:
        yield f"{command.line}: no longer differs ({command.differs})"
    elif command.says not in "\n".join(found):
        yield f"{command.line}: no {command.says!r} in the response:{responses}"


@pytest.mark.long
async def test_hanging_transactions_are_found_through_every_replica(
    tmp_path: Path, java: JavaHome
) -> None:
    """In Kafka every replica tracks producer states; in Penstock the other brokers ask
    the leader.
    """
    settings = {"transaction_partition_verification_enable": False}
    async with Cluster(tmp_path, brokers=2, **settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic(LIVE_TOPIC, 1, 2)
        await asyncio.to_thread(admin.create_topics([topic])[LIVE_TOPIC].result, TIMEOUT_S)
        await cluster.until_served(LIVE_TOPIC)
        leader = cluster.brokers[cluster.leader_of(LIVE_TOPIC)]
        await asyncio.to_thread(produce_hanging, f"127.0.0.1:{leader.port}", LIVE_TOPIC)
        for node_id in cluster.brokers:
            done = await asyncio.to_thread(
                java.tool,
                TOOLS["kafka-transactions"],
                *("--bootstrap-server", cluster.bootstrap),
                *("find-hanging", "--broker-id", str(node_id)),
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert f"{LIVE_TOPIC}\t0" in done.stdout, done.stdout
