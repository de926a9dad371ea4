"""A broker detects a producer that sends single records to a store as slow as S3, logs it once, and
reports it to the doctor and the console.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from penstock.base.ids import NodeId
from penstock.broker.partition import producer_watch
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.objectstore.faults import FaultConfig, FaultyStore, Latency
from penstock.objectstore.memory import MemoryStore
from tests.support.cluster import Cluster
from tests.support.untuned import doctor_findings, followed
from tests.support.waiting import PATIENCE_S, until


@contextmanager
def sending(send: Callable[[], None]) -> Generator[None]:
    """Send records until the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            send()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def without_linger(bootstrap: str) -> Generator[None]:
    """Send each record in a separate batch."""
    settings = {"bootstrap.servers": bootstrap, "client.id": "untuned", "linger.ms": 0}
    producer = Producer(settings)

    def send() -> None:
        producer.produce("t", bytes(100))
        producer.poll(0.005)

    with sending(send):
        yield
    producer.flush(PATIENCE_S)


async def test_producer_that_is_not_tuned_for_s3_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_watch, "WINDOW_S", 1.0)
    monkeypatch.setattr(producer_watch, "REQUESTS_MIN", 10)
    store = FaultyStore(MemoryStore(), Random(1))
    async with Cluster(tmp_path, store=store, load_report_interval_ms=50) as cluster:
        controller = cluster.broker.client
        topic = NewTopic(name="t", assignment=[[NodeId(0)]])
        await controller.create_topics(CreateTopics(topics=[topic]))
        await cluster.until_served("t")
        store.config = FaultConfig((Latency(60.0, 60.0),))

        async def reported() -> bool:
            found = await doctor_findings(cluster)
            return any("Producer untuned at 127.0.0.1" in finding for finding in found)

        with capture_logs() as logs:
            async with in_thread(without_linger(cluster.bootstrap)):
                await until(reported)
                async with followed(cluster) as live:
                    await until(lambda: live.untuned_clients())
                    (shown,) = live.untuned_clients()
                    assert (shown.client_id, shown.settings) == ("untuned", "linger.ms=50")
        events = [event for event in logs if event["event"] == "producer_untuned"]
    assert [(event["client_id"], event["settings"]) for event in events] == [
        ("untuned", "linger.ms=50")
    ]


@asynccontextmanager
async def in_thread(context: AbstractContextManager[None]) -> AsyncGenerator[None]:
    """Enter and leave the block in threads, because the event loop serves the cluster."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)
