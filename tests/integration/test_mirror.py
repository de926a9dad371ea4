"""`penstock mirror` between two Penstock clusters preserves offsets through all faults."""

import asyncio
import json
import random
import signal
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.deploy.mirror.plan import OffsetKind
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.mirrors import (
    commit_offsets,
    committed,
    mirrored,
    records_of,
    running_mirror,
    watermarks,
)
from tests.support.streams_groups import reading, talk_to_coordinator
from tests.support.waiting import until, wait_until


async def in_thread(function: Any, *arguments: Any, **named: Any) -> Any:
    return await asyncio.to_thread(function, *arguments, **named)


async def two_clusters(stack: AsyncExitStack, directory: Path) -> tuple[Cluster, Cluster]:
    (directory / "source").mkdir()
    (directory / "target").mkdir()
    source = await stack.enter_async_context(Cluster(directory / "source", brokers=2))
    target = await stack.enter_async_context(Cluster(directory / "target", brokers=2))
    return source, target


def fill(address: str) -> None:
    """Write records with headers and old timestamps, committed and aborted transactions, and
    deleted records.
    """
    create_topic(address, "orders", 3, retention_ms="-1", max_message_bytes="2000000")
    create_topic(address, "payments", 1, message_timestamp_type="LogAppendTime")
    create_topic(address, "empty", 2)
    create_topic(address, "private", 1)
    producer = Producer({"bootstrap.servers": address, "compression.type": "lz4", "linger.ms": 5})
    for number in range(3_000):
        producer.produce(
            "orders",
            None if number % 7 == 0 else b"v%d" % number,
            b"k%d" % (number % 50),
            partition=number % 3,
            timestamp=1_600_000_000_000 + number,
            headers=[("h", b"x%d" % number), ("h", None)] if number % 5 == 0 else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    writer = Producer({"bootstrap.servers": address, "transactional.id": "pays"})
    writer.init_transactions(TIMEOUT_S)
    for number in range(12):
        writer.begin_transaction()
        for part in range(5):
            writer.produce("payments", b"p%d.%d" % (number, part))
        if number % 3 == 2:
            writer.flush(TIMEOUT_S)
            writer.abort_transaction(TIMEOUT_S)
        else:
            writer.commit_transaction(TIMEOUT_S)


def delete_records(address: str, topic: str, index: int, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    part = TopicPartition(topic, index, offset)
    admin.delete_records([part])[part].result(TIMEOUT_S)


async def test_mirror_copies_a_cluster_with_its_offsets(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        source, target = await two_clusters(stack, tmp_path)
        addresses = source.bootstrap, target.bootstrap
        await in_thread(fill, source.bootstrap)
        await in_thread(delete_records, source.bootstrap, "orders", 1, 300)
        offsets = {("orders", 0): 500, ("orders", 1): 400, ("payments", 0): 31, ("private", 0): 0}
        await in_thread(commit_offsets, source.bootstrap, "billing", offsets)
        await in_thread(run_streams_group, source.bootstrap, "counter", "orders")

        planned = await in_thread(mirrored, *addresses, "--dry-run", "--exclude", "priv.*")
        assert planned.returncode == 0, planned.stderr
        assert "retention.ms=-1" in planned.stdout
        assert "private" not in planned.stdout
        assert "billing" in planned.stdout

        done = await in_thread(mirrored, *addresses, "--once", "--exclude", "priv.*", "--json")
        assert done.returncode == 0, done.stderr
        assert "no ACLs are copied: the source has no authorizer" in done.stderr
        view = json.loads(done.stdout.splitlines()[-1])
        assert (view["lag"], view["groups"]) == (0, 2)
        assert {topic["topic"]: topic["mode"] for topic in view["topics"]} == dict.fromkeys(
            ("orders", "payments", "empty"), OffsetKind.SAME
        )
        for topic, partitions in (("orders", 3), ("payments", 1), ("empty", 2)):
            there, here = [
                await in_thread(records_of, address, topic, partitions) for address in addresses
            ]
            assert here == there
            ends = [
                await in_thread(watermarks, address, topic, partitions) for address in addresses
            ]
            assert ends[0] == ends[1]
        assert sum(len(found) for found in here.values()) == 0
        assert (await in_thread(watermarks, target.bootstrap, "orders", 3))[1][0] == 300
        del offsets["private", 0]
        assert await in_thread(committed, target.bootstrap, "billing") == offsets
        assert await in_thread(committed, target.bootstrap, "counter") == {("orders", 0): 5}
        with pytest.raises(KafkaException, match="Policy violation"):
            await in_thread(produce_one, target.bootstrap, "orders")

        finish = (*addresses, "finish", "--topics", "orders|payments")
        would = await in_thread(mirrored, *finish, "--dry-run", "--json")
        assert json.loads(would.stdout) == {"would_finish": ["orders", "payments"], "lag": 0}
        with pytest.raises(KafkaException, match="Policy violation"):
            await in_thread(produce_one, target.bootstrap, "orders")
        ended = await in_thread(mirrored, *finish)
        assert ended.returncode == 0, ended.stderr
        assert "finished: orders, payments" in ended.stdout
        await in_thread(produce_one, target.bootstrap, "orders")
        again = await in_thread(mirrored, *addresses, "--once", "--topics", "orders")
        assert again.returncode == 0, again.stderr
        shown = await in_thread(mirrored, *addresses, "status", "--json")
        states = {topic["topic"]: topic["state"] for topic in json.loads(shown.stdout)["topics"]}
        assert states == {"empty": "in step", "orders": "finished", "payments": "finished"}


def run_streams_group(address: str, group: str, topic: str) -> None:
    """Let a streams group commit offset 5, and let a member join it."""
    with closing(talk_to_coordinator(address, group)) as talk:
        assert talk.commit(group, "", -1, 0, topic) == 0
        assert talk.join(group, "a", reading(topic))["error_code"] == 0


def produce_one(address: str, topic: str) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": TIMEOUT_S * 1_000})
    producer.produce(topic, b"new", partition=0, on_delivery=lambda error, _: failed.append(error))
    producer.flush(TIMEOUT_S)
    if failed[0] is not None:
        raise KafkaException(failed[0])


async def test_mirror_killed_at_random_copies_each_record_once(tmp_path: Path) -> None:
    chosen = random.Random(7)
    async with AsyncExitStack() as stack:
        source, target = await two_clusters(stack, tmp_path)
        addresses = source.bootstrap, target.bootstrap
        await in_thread(create_topic, source.bootstrap, "events", 4)
        is_over = asyncio.Event()

        async def write() -> int:
            count = 0
            while not is_over.is_set():
                values = [b"%d" % number for number in range(count, count + 200)]
                await in_thread(
                    produce, source.bootstrap, "events", values, range(4), enable_idempotence=True
                )
                count += 200
                await asyncio.sleep(0.1)
            return count

        writing = asyncio.create_task(write())
        for _ in range(4):
            with running_mirror(*addresses, tmp_path / "mirror.log") as process:
                await asyncio.sleep(chosen.uniform(0.8, 2.5))
                process.send_signal(signal.SIGKILL)
        # Run two mirrors at once while a broker of each cluster dies.
        with (
            running_mirror(*addresses, tmp_path / "one.log"),
            running_mirror(*addresses, tmp_path / "two.log"),
        ):
            await until(lambda: (tmp_path / "two.log").stat().st_size > 0)
            await target.kill_broker(1)
            await source.kill_broker(1)
            refused = await in_thread(mirrored, *addresses, "finish")
            is_over.set()
            assert refused.returncode == 1
            assert (
                "the source still receives records in events: stop the producers" in refused.stderr
            )
            count = await writing
            done = await in_thread(mirrored, *addresses, "finish")
            assert done.returncode == 0, done.stderr
        there, here = [await in_thread(records_of, address, "events", 4) for address in addresses]
        assert sum(map(len, there.values())) == count
        assert here == there


async def test_only_one_mirror_at_a_time_may_append_to_a_nonempty_topic(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        source, target = await two_clusters(stack, tmp_path)
        addresses = source.bootstrap, target.bootstrap
        for address, partitions in ((source.bootstrap, 2), (target.bootstrap, 1)):
            await in_thread(create_topic, address, "log", partitions)
        await in_thread(produce, source.bootstrap, "log", [b"a%d" % n for n in range(50)], range(2))
        await in_thread(produce, target.bootstrap, "log", [b"own"])
        await in_thread(commit_offsets, source.bootstrap, "reads", {("log", 0): 10})

        refused = await in_thread(mirrored, *addresses, "--once")
        assert "topic 'log' is not copied: the topic has records at the target" in refused.stderr
        assert await in_thread(watermarks, target.bootstrap, "log", 1) == [(0, 1)]

        first = await in_thread(mirrored, *addresses, "--once", "--append")
        assert first.returncode == 0, first.stderr
        assert await in_thread(committed, target.bootstrap, "reads") == {("log", 0): 11}
        with running_mirror(*addresses, tmp_path / "old.log") as old:
            await until(lambda: b"lag 0" in (tmp_path / "old.log").read_bytes())
            await in_thread(
                produce, source.bootstrap, "log", [b"b%d" % n for n in range(50)], range(2)
            )
            done = await in_thread(mirrored, *addresses, "finish")
            assert done.returncode == 0, done.stderr
            await until(lambda: old.poll() is not None)
        assert old.returncode in (0, 1), (tmp_path / "old.log").read_text()
        there, here = [await in_thread(records_of, address, "log", 2) for address in addresses]
        values = {index: [record.value for record in found] for index, found in here.items()}
        expected = {index: [record.value for record in found] for index, found in there.items()}
        expected[0].insert(0, b"own")
        assert values == expected
        late = await in_thread(mirrored, *addresses, "finish")
        assert "the mirror of these topics has ended already: log" in late.stderr


async def test_topic_recreated_at_the_source_is_detected(tmp_path: Path) -> None:
    """The new topic is longer than the copied part of the old one."""
    log = tmp_path / "mirror.log"
    async with AsyncExitStack() as stack:
        source, target = await two_clusters(stack, tmp_path)
        addresses = source.bootstrap, target.bootstrap
        for topic in ("again", "stays"):
            await in_thread(create_topic, source.bootstrap, topic, 1)
            await in_thread(produce, source.bootstrap, topic, [b"old"] * 100, [0])
        with running_mirror(*addresses, log):
            await until_copied(target, {"again": 100, "stays": 100})
            copied = await in_thread(records_of, target.bootstrap, "again", 1)
            admin = AdminClient({"bootstrap.servers": source.bootstrap})
            await in_thread(admin.delete_topics(["again"])["again"].result, TIMEOUT_S)
            await in_thread(create_topic, source.bootstrap, "again", 1)
            await in_thread(produce, source.bootstrap, "again", [b"new"] * 300, [0])
            await in_thread(produce, source.bootstrap, "stays", [b"new"] * 300, [0])
            await until_copied(target, {"stays": 400})
            await until(lambda: b"the topic was created again" in log.read_bytes())
        again = await in_thread(mirrored, *addresses, "--once")
        assert "topic 'again' is not copied: it is a mirror of" in again.stderr
        assert await in_thread(records_of, target.bootstrap, "again", 1) == copied


async def until_copied(target: Cluster, ends: dict[str, int]) -> None:
    def has_all() -> bool:
        consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "watches"})
        try:
            topics = consumer.list_topics(timeout=TIMEOUT_S).topics
            return ends.keys() <= topics.keys() and all(
                consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)[1] >= end
                for topic, end in ends.items()
            )
        finally:
            consumer.close()

    await in_thread(wait_until, has_all)
