"""Brokers crash between any two steps of a transaction and during its commit: it remains atomic
over two topics and offsets.

The producer continues from its committed offset, so a repeated or partial transaction shows as a
repeated or missing number.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from penstock.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from tests.support.clients import TIMEOUT_S, confluent_consumer, create_topic, produce, read_records
from tests.support.fault_store import FaultCluster
from tests.support.waiting import PATIENCE_S, wait_until

TID: Final = "tid"
STEPS: Final = ("produced", "offsets sent", "committing", "committed")
"""Each round crashes after a different step."""

ROUND_TIMEOUT_S: Final = PATIENCE_S


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FaultCluster]:
    async with FaultCluster(
        tmp_path, brokers=2, transaction_abort_timed_out_transaction_cleanup_interval_ms=50
    ) as cluster:
        yield cluster
        # Free producers that are still referenced by tracebacks now, while their brokers live.
        gc.collect()


class Rounds:
    """Runs transactions in a thread; crashes run on the cluster's event loop."""

    def __init__(self, cluster: FaultCluster, victim: str) -> None:
        self._cluster = cluster
        self._victim = victim
        self._loop = asyncio.get_running_loop()
        self._crashed_rounds: set[int] = set()
        self._producer: Producer | None = None
        self._bootstrap = cluster.bootstrap

    def run(self) -> None:
        for topic in ("in", "a", "b"):
            create_topic(self._bootstrap, topic)
        produce(self._bootstrap, "in", [b"%d" % number for number in range(len(STEPS))])
        self._consumer = confluent_consumer(
            self._bootstrap, "g", enable_auto_commit=False, isolation_level="read_committed"
        )
        try:
            deadlines: dict[int, float] = {}
            while (number := self._next()) < len(STEPS):
                deadline = deadlines.setdefault(number, time.monotonic() + ROUND_TIMEOUT_S)
                assert time.monotonic() < deadline, f"round {number} does not end"
                if self._victim == "all" and number - 1 in self._crashed_rounds:
                    # If the group coordinator is missing in metadata for a moment, librdkafka drops
                    # that broker and then waits for it forever.
                    self._producer = None
                try:
                    self._round(number)
                except KafkaException as error:
                    self._recover(error)
        finally:
            self._consumer.close()
        assert self._crashed_rounds == set(range(len(STEPS)))

    def _next(self) -> int:
        def committed() -> list[TopicPartition]:
            try:
                return self._consumer.committed([TopicPartition("in", 0)], TIMEOUT_S)
            except KafkaException as error:
                if not error.args[0].retriable() and error.args[0].name() not in {
                    "_TIMED_OUT",
                    "_WAIT_COORD",
                }:
                    raise
                return []

        return max(0, wait_until(committed)[0].offset)

    def _round(self, number: int) -> None:
        if self._producer is None:
            self._producer = Producer(
                {"bootstrap.servers": self._bootstrap, "transactional.id": TID, "linger.ms": 0}
            )
            self._producer.init_transactions(TIMEOUT_S)
        producer = self._producer
        producer.begin_transaction()
        for topic in ("a", "b"):
            producer.produce(topic, b"%d" % number)
        assert producer.flush(TIMEOUT_S) == 0
        self._crash(number, "produced")
        producer.send_offsets_to_transaction(
            [TopicPartition("in", 0, number + 1)],
            self._consumer.consumer_group_metadata(),
            TIMEOUT_S,
        )
        self._crash(number, "offsets sent")
        crash = self._begin_crash(number, "committing")
        try:
            producer.commit_transaction(TIMEOUT_S)
        finally:
            if crash is not None:
                crash.result(TIMEOUT_S)
        self._crash(number, "committed")

    def _recover(self, error: KafkaException) -> None:
        assert self._producer is not None
        reason = error.args[0]
        if reason.txn_requires_abort():
            try:
                self._producer.abort_transaction(TIMEOUT_S)
            except KafkaException:
                self._producer = None
        else:
            # A new producer with the same id completes or aborts the open transaction and fences
            # this one.
            self._producer = None

    def _crash(self, number: int, step: str) -> None:
        crash = self._begin_crash(number, step)
        if crash is not None:
            crash.result(TIMEOUT_S)

    def _begin_crash(self, number: int, step: str) -> "Future[None] | None":
        if STEPS[number] != step or number in self._crashed_rounds:
            return None
        self._crashed_rounds.add(number)
        return asyncio.run_coroutine_threadsafe(self._kill_and_restart(), self._loop)

    def _kill_and_restart(self) -> Coroutine[Any, Any, None]:
        cluster = self._cluster
        if self._victim == "all":
            victims = list(cluster.brokers)
        else:
            coordinated = cluster.broker.transactions.partition_of(TID)
            assert coordinated is not None
            topic, partition = (
                (TRANSACTIONS_TOPIC, coordinated) if self._victim == "coordinator" else ("a", 0)
            )
            victims = [max(0, cluster.leader_of(topic, partition))]

        async def kill() -> None:
            await asyncio.gather(*(cluster.kill_broker(node_id) for node_id in victims))
            for node_id in victims:
                await cluster.start_broker(node_id)

        return kill()


@pytest.mark.parametrize("victim", ["coordinator", "leader", "all"])
async def test_transactions_are_atomic_whichever_broker_crashes(
    cluster: FaultCluster, victim: str
) -> None:
    await asyncio.to_thread(Rounds(cluster, victim).run)
    expected = [b"%d" % number for number in range(len(STEPS))]

    def committed_values(topic: str) -> list[bytes | None]:
        """Return the committed values. The final record stays hidden until its transaction has
        ended.
        """
        consumer = confluent_consumer(
            cluster.bootstrap, "reader", enable_auto_commit=False, isolation_level="read_committed"
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = [message.value() for message in read_records(consumer, len(expected))]
        more = consumer.consume(1, 0.3)
        consumer.close()
        return values + [message.value() for message in more]

    for topic in ("a", "b"):
        assert await asyncio.to_thread(committed_values, topic) == expected
