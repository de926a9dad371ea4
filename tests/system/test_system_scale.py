"""Ten thousand partitions on three brokers and three controllers: creation, hundreds of moves with
one file, and a failover of a third of the partitions.

Clients produce to partitions on every broker throughout; the log then contains every acknowledged
record once, in order.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.deploy.admin.reassign.admin import current_assignment, elect_preferred, ongoing
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.local.handle import LocalCluster
from penstock.protocol.error_codes import ErrorCode
from tests.support.ack_recorder import ConfluentLoad, check, read_back
from tests.support.clients import create_topic, produce
from tests.support.dev_cluster import on_files, penstock
from tests.support.waiting import wait_until
from tests.support.wire import wire_client

pytestmark = pytest.mark.system

PARTITIONS = 10_000
PATIENCE_S = 300.0
"""Starts and moves take 10 s on an idle machine, and minutes at a load average of 20."""
BROKERS = 3
MOVED = range(0, 3_000, 10)
SAMPLE = [*range(0, 3_000, 250), *range(1, PARTITIONS, 1_111)]
"""All partitions of the first range move; those of the second are spread over all brokers."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with on_files(tmp_path, "--brokers", str(BROKERS), "--controllers", "3") as cluster:
        yield cluster


def create(cluster: LocalCluster) -> None:
    """Create the topic. On a busy machine this may exceed the timeout of the broker (30 s), of its
    session, which closes its connections, or of the client. A repeated request then finds the
    topic.
    """
    patient = {KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
    for _ in range(4):
        try:
            create_topic(cluster.bootstrap, "t", PARTITIONS, timeout_s=PATIENCE_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code in patient:
                continue
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return
    raise AssertionError("the topic was not created in four attempts")


def assignment(cluster: LocalCluster) -> dict[int, tuple[int, ...]]:
    with wire_client(cluster.bootstrap) as client:
        return {
            key.partition: replicas
            for key, replicas in current_assignment(client, ["t"])[0].items()
        }


def move(cluster: LocalCluster, directory: Path) -> dict[int, tuple[int, ...]]:
    """Move each partition of `MOVED` to another broker with one file. Return the target
    replicas.
    """
    before = assignment(cluster)
    requested = {index: ((before[index][0] + 1) % BROKERS,) for index in MOVED}
    file = directory / "reassignment.json"
    rows = [
        {"topic": "t", "partition": index, "replicas": list(replicas)}
        for index, replicas in requested.items()
    ]
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    executed = penstock(cluster, "reassign", "execute", "--reassignment-json-file", str(file))
    assert executed.returncode == 0, executed.stderr
    with wire_client(cluster.bootstrap) as client:
        wait_until(lambda: not ongoing(client), PATIENCE_S)
    verified = penstock(cluster, "reassign", "verify", "--reassignment-json-file", str(file))
    assert verified.returncode == 0, verified.stdout[-2_000:]
    return requested


def elect_all(cluster: LocalCluster) -> Counter[int]:
    """Run elections until the preferred broker leads every partition. Return the partition count
    per broker.
    """
    keys = [Key("t", index) for index in range(PARTITIONS)]

    def are_elected() -> bool:
        with wire_client(cluster.bootstrap) as client:
            _, problems = elect_preferred(client, keys)
        return {code for code, _ in problems.values()} == {ErrorCode.ELECTION_NOT_NEEDED}

    wait_until(are_elected, PATIENCE_S)
    return Counter(replicas[0] for replicas in assignment(cluster).values())


@pytest.mark.costly("10,000 partitions open three times")
async def test_ten_thousand_partitions_are_created_moved_and_failed_over(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    await asyncio.to_thread(create, cluster)
    async with ConfluentLoad(cluster.bootstrap, "t", SAMPLE, patience_s=PATIENCE_S) as load:
        await load.until_acknowledged(5)
        expected = await asyncio.to_thread(move, cluster, tmp_path)
        now = await asyncio.to_thread(assignment, cluster)
        assert {index: now[index] for index in MOVED} == expected
        await load.until_acknowledged(5)
        victim = [broker for broker in cluster.brokers() if broker.node_id == BROKERS - 1]
        cluster.kill(victim)
        await load.until_acknowledged(5)
        await asyncio.to_thread(cluster.wait_for_new, victim, PATIENCE_S)
        led = await asyncio.to_thread(elect_all, cluster)
        assert min(led.values()) > PARTITIONS / BROKERS / 2
        await load.until_acknowledged(5)
    check(load, await read_back(cluster.bootstrap, "t", SAMPLE))
    others = [index for index in range(PARTITIONS) if index not in SAMPLE]
    await asyncio.to_thread(produce, cluster.bootstrap, "t", [b"x"] * len(others), others)
