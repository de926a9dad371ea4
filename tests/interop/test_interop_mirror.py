"""`penstock mirror` from Apache Kafka 4.2 to Penstock and back, killed at random while producers
write: each record arrives once, at its offset in Penstock, and with an exact translation in Kafka.
"""

import asyncio
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.cluster import Cluster
from tests.support.mirrors import (
    Copied,
    commit_offsets,
    committed,
    mirrored,
    records_of,
    running_mirror,
    watermarks,
    without_offsets,
)
from tests.support.waiting import wait_until

PARTITIONS = 2

pytestmark = pytest.mark.cluster(brokers=1)


@contextmanager
def writing(address: str, topic: str) -> Iterator[None]:
    """Produce until the block ends, both in transactions, of which every third is aborted, and
    without.
    """
    is_over = threading.Event()

    def write() -> None:
        plain = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "compression.type": "zstd",
                "linger.ms": 20,
            }
        )
        writer = Producer({"bootstrap.servers": address, "transactional.id": f"writes-{topic}"})
        writer.init_transactions(TIMEOUT_S)
        number = 0
        while not is_over.wait(0.05):
            writer.begin_transaction()
            for part in range(40):
                value = b"%d.%d" % (number, part)
                headers: Any = [("number", b"%d" % number)] if part % 4 == 0 else None
                for producer in (plain, writer):
                    producer.produce(
                        topic,
                        value if part % 9 else None,
                        b"k%d" % part,
                        partition=part % PARTITIONS,
                        timestamp=1_600_000_000_000 + number,
                        headers=headers,
                    )
            writer.flush(TIMEOUT_S)
            if number % 3 == 0:
                writer.abort_transaction(TIMEOUT_S)
            else:
                writer.commit_transaction(TIMEOUT_S)
            number += 1
        assert plain.flush(TIMEOUT_S) == 0

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def move(source: str, target: str, topic: str, directory: Path, kills: int) -> None:
    """Mirror a topic while producers write, kill the mirror at random, and finish."""
    chosen = random.Random(kills)
    log = directory / f"{topic}.log"
    create_topic(source, topic, PARTITIONS, retention_ms="-1")
    with writing(source, topic):
        for _ in range(kills):
            with running_mirror(source, target, log, "--topics", topic) as process:
                with pytest.raises(TimeoutError):
                    wait_for(process, chosen.uniform(1.0, 3.0))
                # On a busy machine, the first mirror may not have started yet.
                wait_until(lambda: process.poll() is not None or has_records(target, topic))
                process.send_signal(signal.SIGKILL)
    assert has_records(target, topic), log.read_text()
    for group, share in (("early", 3), ("middle", 2), ("end", 1)):
        ends = [end for _, end in watermarks(source, topic, PARTITIONS)]
        offsets = {(topic, index): end // share for index, end in enumerate(ends)}
        commit_offsets(source, f"{topic}-{group}", offsets)
    done = mirrored(source, target, "finish", "--topics", topic, "--groups", f"{topic}-.*")
    assert done.returncode == 0, (done.stderr, log.read_text())
    assert f"finished: {topic}" in done.stdout


def has_records(address: str, topic: str) -> bool:
    try:
        return any(end > 0 for _, end in watermarks(address, topic, PARTITIONS))
    except KafkaException:  # the topic does not exist yet
        return False


def wait_for(process: Any, timeout_s: float) -> None:
    """Return when the process has ended. Raises TimeoutError."""
    import subprocess

    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


def unread(records: dict[int, list[Copied]], offsets: dict[int, int]) -> dict[int, list[Copied]]:
    """Return the records after a group's offsets."""
    rest = {
        index: [record for record in found if record.offset >= offsets[index]]
        for index, found in records.items()
    }
    return without_offsets(rest)


def compare(source: str, target: str, topic: str) -> tuple[Any, Any]:
    there, here = records_of(source, topic, PARTITIONS), records_of(target, topic, PARTITIONS)
    assert sum(map(len, there.values())) > 100
    assert without_offsets(here) == without_offsets(there)
    for group in ("early", "middle", "end"):
        before, after = [committed(address, f"{topic}-{group}") for address in (source, target)]
        assert before.keys() == after.keys()
        rest = [
            unread(records, {index: offsets[topic, index] for index in range(PARTITIONS)})
            for records, offsets in ((there, before), (here, after))
        ]
        assert rest[0] == rest[1], (group, before, after)
    return there, here


@pytest.mark.costly("MirrorMaker runs in a JVM")
async def test_kafka_topics_move_to_penstock_with_their_offsets(
    peer: str, cluster: Cluster, tmp_path: Path
) -> None:
    topic = "to-penstock"
    await asyncio.to_thread(move, peer, cluster.bootstrap, topic, tmp_path, 3)
    there, here = await asyncio.to_thread(compare, peer, cluster.bootstrap, topic)
    assert here == there
    for group in ("early", "middle", "end"):
        before, after = [
            await asyncio.to_thread(committed, address, f"{topic}-{group}")
            for address in (peer, cluster.bootstrap)
        ]
        assert before == after
    ends = [
        await asyncio.to_thread(watermarks, address, topic, PARTITIONS)
        for address in (peer, cluster.bootstrap)
    ]
    assert ends[0] == ends[1]


async def test_penstock_topics_move_to_kafka_with_translated_offsets(
    peer: str, cluster: Cluster, tmp_path: Path
) -> None:
    topic = "to-kafka"
    await asyncio.to_thread(move, cluster.bootstrap, peer, topic, tmp_path, 3)
    await asyncio.to_thread(compare, cluster.bootstrap, peer, topic)


@pytest.mark.long
async def test_mirrors_killed_many_times_copy_each_record_once(
    peer: str, cluster: Cluster, tmp_path: Path
) -> None:
    for source, target, topic in (
        (peer, cluster.bootstrap, "often-to-penstock"),
        (cluster.bootstrap, peer, "often-to-kafka"),
    ):
        await asyncio.to_thread(move, source, target, topic, tmp_path, 15)
        await asyncio.to_thread(compare, source, target, topic)
