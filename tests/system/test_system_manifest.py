"""A reader that has only the address of an HTTP store, while cluster processes are killed."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.deploy.local.handle import LocalCluster
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.url import open_store
from tests.support.ack_recorder import ConfluentLoad, check
from tests.support.clients import create_topic
from tests.support.dev_cluster import DevCluster
from tests.support.store_reader import Follower

pytestmark = pytest.mark.system

PARTITIONS = [0, 1, 2]
PATIENCE = {"request.timeout.ms": 4_000, "socket.timeout.ms": 5_000, "linger.ms": 50}


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with DevCluster(["--log-level", "error", "--no-console"]) as cluster:
        create_topic(cluster.bootstrap, "t", len(PARTITIONS))
        yield cluster


@pytest.fixture
async def store(cluster: LocalCluster) -> AsyncIterator[ObjectStore]:
    store = open_store(cluster.state().store_url)
    yield store
    await store.close()


@pytest.mark.costly("processes start again under load")
async def test_acknowledged_records_are_in_the_store_whichever_process_is_killed(
    cluster: LocalCluster, store: ObjectStore
) -> None:
    follower = Follower(store, "t", PARTITIONS)
    async with ConfluentLoad(cluster.bootstrap, "t", PARTITIONS, **PATIENCE) as load:
        for role in ("broker", "controller"):
            victims = cluster.state().of_role(role)[:1]
            await load.until_acknowledged(100)
            await follower.until_seen(load)
            cluster.kill(victims)
            await asyncio.to_thread(cluster.wait_for_new, victims)
        await load.until_acknowledged(100)
        await follower.until_seen(load)
    await follower.until_seen(load)
    log = await follower.log()
    check(load, log)
    fresh = Follower(store, "t", PARTITIONS)
    await fresh.until_seen(load)
    assert await fresh.log() == log
