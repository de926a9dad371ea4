"""The leader of share partitions is killed while members consume: accepted records are not
delivered again, and no record is lost.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.deploy.local.handle import LocalCluster
from penstock.protocol import apis
from penstock.protocol.gen import describe_share_group_offsets as offsets
from tests.support.clients import create_topic, produce
from tests.support.dev_cluster import on_files
from tests.support.share_worker import ShareLedger, ShareWorker, coordinator_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

TOPIC, GROUP, PARTITIONS = "jobs", "workers", 4
RECORDS = 400
LOCK = "group.share.record.lock.duration.ms=3000"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with on_files(tmp_path, "--set", LOCK) as cluster:
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        yield cluster


async def test_killed_leader_of_share_partitions_loses_no_record_and_no_acknowledgment(
    cluster: LocalCluster,
) -> None:
    await asyncio.to_thread(_kill_leaders, cluster)


def _kill_leaders(cluster: LocalCluster) -> None:
    ledger = ShareLedger()
    with ExitStack() as workers:
        for _ in range(3):
            worker = ShareWorker(lambda: cluster.bootstrap, GROUP, TOPIC, ledger).start()
            workers.callback(worker.stop)
        # The group starts at the end of the log, so it may skip records of the first rounds until
        # all share partitions are initialized.
        started = _until_started(cluster, ledger)
        for number in range(1, 3):
            _kill_one(cluster, ledger, started, number)
        # A record that was neither stored as accepted nor delivered again would remain as lag.
        wait_until(lambda: _lags(cluster) == dict.fromkeys(range(PARTITIONS), 0))
    assert ledger.problems == []


def _kill_one(
    cluster: LocalCluster, ledger: ShareLedger, started: dict[int, int], number: int
) -> None:
    _produce(cluster)
    wait_until(lambda: len(ledger.accepted) > sum(started.values()) + 2 * (number - 1) * RECORDS)
    killed = [cluster.brokers()[number % len(cluster.brokers())]]
    cluster.kill(killed)
    _produce(cluster)
    wait_until(lambda: _is_done(ledger, started, 2 * number * RECORDS // PARTITIONS))
    cluster.wait_for_new(killed)


def _lags(cluster: LocalCluster) -> dict[int, int]:
    """Return the lag of each partition."""
    group = offsets.DescribeShareGroupOffsetsRequestGroup(GROUP, None)
    member = coordinator_of(cluster.bootstrap, GROUP)
    try:
        response = member.send_request(
            apis.DESCRIBE_SHARE_GROUP_OFFSETS, offsets.DescribeShareGroupOffsetsRequest([group])
        )
    finally:
        member.close()
    (topic,) = response["groups"][0]["topics"]
    return {partition["partition_index"]: partition["lag"] for partition in topic["partitions"]}


def _produce(cluster: LocalCluster) -> None:
    values = [b"%d" % number for number in range(RECORDS)]
    produce(cluster.bootstrap, TOPIC, values, range(PARTITIONS), enable_idempotence=True)


def _until_started(cluster: LocalCluster, ledger: ShareLedger) -> dict[int, int]:
    """Produce until each partition has delivered a record. Return the end offset of
    each partition.
    """
    ends = dict.fromkeys(range(PARTITIONS), 0)

    def all_started() -> bool:
        produce(cluster.bootstrap, TOPIC, [b"first"] * PARTITIONS, range(PARTITIONS))
        for partition in ends:
            ends[partition] += 1
        return {partition for partition, _ in ledger.accepted} == set(ends)

    wait_until(all_started)
    return ends


def _is_done(ledger: ShareLedger, started: dict[int, int], count: int) -> bool:
    requested = {
        (partition, end + number) for partition, end in started.items() for number in range(count)
    }
    return requested <= ledger.settled
