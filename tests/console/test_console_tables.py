"""Topic and table pages show the states that table runners write to the store."""

import asyncio
import time
from collections.abc import Iterator
from uuid import UUID

import pytest

from penstock.deploy.clients.frozen_topics import delete_topic
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.local.handle import LocalCluster
from penstock.lake.manifest.table_status import RunnerStatus, TopicStatus, write_status
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.url import open_store
from tests.support.console import ConsoleProcess, Visitor
from tests.support.waiting import until, wait_until

TOPIC = "sales"
ENABLED = {"penstock.table.enable": "true", "penstock.table.name": "lake.exported"}


@pytest.fixture
def visitor(cluster: LocalCluster, console: ConsoleProcess) -> Iterator[Visitor]:
    """A visitor of a console that lists the topic."""
    kafka = Kafka(cluster.bootstrap)
    kafka.create_topic(TOPIC, 1, -1, ENABLED)
    visitor = Visitor(console.url)
    wait_until(lambda: visitor.get(f"/topics/{TOPIC}").status == 200)
    yield visitor
    delete_topic(cluster.bootstrap, TOPIC)
    wait_until(lambda: TOPIC not in visitor.get("/tables").text)


async def write(store_url: str) -> None:
    """Write the status of a failing export."""
    store = open_store(store_url)
    try:
        view = ClusterView(store)
        topic_ids: dict[str, UUID] = {}

        async def is_published() -> bool:
            topic_ids.update(
                {topic.name: topic.topic_id for topic in (await view.refresh()).topics}
            )
            return TOPIC in topic_ids

        await until(is_published)
        now_ms = time.time_ns() // 1_000_000
        topic = TopicStatus(
            topic=TOPIC,
            topic_id=str(topic_ids[TOPIC]),
            table="lake.exported",
            format="iceberg",
            state="failing",
            commit_interval_ms=60_000,
            lag_records=1_234,
            lag_ms=90_000,
            rows=5_678,
            error="the catalog <denies> access",
        )
        status = RunnerStatus(
            runner="test", version="1", started_ms=now_ms, updated_ms=now_ms, topics=(topic,)
        )
        await write_status(store, (await view.refresh()).cluster_id, status)
    finally:
        await store.close()


def test_export_state_is_shown_on_the_page_of_its_topic(
    cluster: LocalCluster, visitor: Visitor
) -> None:
    for path in ("/tables", f"/topics/{TOPIC}"):
        assert "not running" in visitor.get(path).words
    asyncio.run(write(cluster.state().store_url))
    for path in ("/tables", f"/topics/{TOPIC}"):
        page = visitor.get(path)
        for text in ("lake.exported", "failing", "1,234", "5,678"):
            assert text in page.words, path
        assert "the catalog &lt;denies&gt; access" in page.text
    assert "lake.exported" not in visitor.get("/topics/orders").text
