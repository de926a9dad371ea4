"""Forks of partitions: fork points, and the state that the first leader of a fork derives."""

from random import Random

import pytest

from penstock.broker.errors import ErrorCode, KafkaError
from penstock.broker.handlers.topics.forks import (
    ForkRequest,
    PointRefusal,
    find_fork_points,
    take_fork_request,
)
from penstock.broker.partition.fork_point import WantedPoint
from penstock.controller.api import messages as m
from penstock.controller.managers.forks import EPOCHS_MAX
from penstock.controller.metadata.topic_configs import FORK_SOURCE
from tests.support.partition_harness import batch, idempotent, transactional

NOWHERE = WantedPoint()


@pytest.fixture
async def cluster(harness):
    return harness, await harness.broker(0), await harness.broker(1)


async def fork(harness, leader, source, name, requested=NOWHERE, *, with_kept=False):
    """Fork the only partition of the source. Return its fork point."""
    point = (await find_fork_points(leader, [(source, {0: requested})]))[0][0]
    assert not isinstance(point, PointRefusal), point
    topic_id = harness.image.topics.by_name(source).topic_id
    requested = m.TopicFork(source_topic_id=topic_id, partitions=[point], with_kept=with_kept)
    harness.topic(name, fork=requested)
    return point


async def test_a_fork_continues_the_leader_epochs_of_its_source(cluster):
    harness, first, second = cluster
    harness.topic("t")
    for leader in (first, second, first):
        await harness.hand_over("t", leader)
        assert (await leader.produce("t", batch(b"a", b"b"))).error_code == 0
    source = harness.record("t")
    point = await fork(harness, first, "t", "f", WantedPoint(offset=4))
    assert (point.end_offset, point.scan_offset, point.txn_end_offset) == (4, 4, 0)
    assert harness.record("f").leader_epoch == source.leader_epoch + 1
    await harness.hand_over("f", second)
    ends = [(await second.epoch_end("f", epoch)).end_offset for epoch in (1, 2, 3, 4, 5)]
    assert ends == [2, 4, 4, 4, 4], "epoch 3 of the source has no records in the fork"
    assert await second.values("f") == [b"a", b"b"] * 2


async def test_epochs_that_a_fork_does_not_know_never_end_too_early(cluster):
    harness, first, second = cluster
    harness.topic("t")
    for leader in (first, second) * (EPOCHS_MAX // 2 + 1):
        await harness.hand_over("t", leader)
        assert (await leader.produce("t", batch(b"a", b"b"))).error_code == 0
    await fork(harness, second, "t", "f")
    await harness.hand_over("f", first)
    ends = [(await first.epoch_end("f", epoch)).end_offset for epoch in (1, 2, 3, 4)]
    assert ends == [4, 4, 6, 8]


async def test_a_fork_point_is_at_a_batch_boundary(cluster):
    harness, leader, _ = cluster
    harness.topic("t")
    await harness.hand_over("t", leader)
    for values in ((b"0", b"1", b"2"), (b"3",), (b"4", b"5")):
        await leader.produce("t", batch(*values))
    for offset, end in {0: 0, 1: 0, 2: 0, 3: 3, 4: 4, 5: 4, 6: 6}.items():
        point = (await find_fork_points(leader, [("t", {0: WantedPoint(offset=offset)})]))[0][0]
        assert isinstance(point, m.ForkedPartition)
        assert point.end_offset == end
    for offset in (7, 1 << 40):
        refused = (await find_fork_points(leader, [("t", {0: WantedPoint(offset=offset)})]))[0][0]
        assert isinstance(refused, PointRefusal)
        assert refused.code is ErrorCode.OFFSET_OUT_OF_RANGE
    partition = await leader.opened("t")
    await leader.partitions.trim(partition, 2)
    refused = (await find_fork_points(leader, [("t", {0: WantedPoint(offset=1)})]))[0][0]
    assert isinstance(refused, PointRefusal)
    await fork(harness, leader, "t", "f", WantedPoint(offset=2))
    found = await harness.hand_over("f", leader)
    assert (found.log_start_offset, found.high_watermark) == (2, 2)
    assert (await leader.produce("f", batch(b"own"))).base_offset == 2


async def test_only_the_leader_reports_fork_points(cluster):
    harness, leader, other = cluster
    harness.topic("t")
    await harness.hand_over("t", leader)
    refused = (await find_fork_points(other, [("t", {0: NOWHERE})]))[0][0]
    assert isinstance(refused, PointRefusal)
    assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.is_unsure = True
    refused = (await find_fork_points(leader, [("t", {0: NOWHERE})]))[0][0]
    assert isinstance(refused, PointRefusal)


async def test_producers_of_the_source_are_unknown_in_the_fork(cluster):
    harness, leader, other = cluster
    harness.topic("t")
    await harness.hand_over("t", leader)
    await leader.produce("t", idempotent(0, b"a", b"b"))
    await leader.produce("t", transactional(7, 0, b"c"))
    await fork(harness, leader, "t", "f")
    await harness.hand_over("f", leader)
    assert (await leader.produce("f", idempotent(0, b"d"))).error_code == 0
    assert (await leader.produce("f", transactional(7, 0, b"e"))).error_code == 0
    # Without a checkpoint, the next leader replays the log of the source as well.
    await leader.crash()
    await harness.fail_over(leader, other)
    await harness.hand_over("f", other)
    repeated = await other.produce("f", idempotent(0, b"d"))
    assert (repeated.error_code, repeated.base_offset) == (0, 4)
    assert (await other.produce("f", idempotent(1, b"g"))).error_code == 0
    assert (await other.produce("f", transactional(7, 1, b"h"))).error_code == 0
    assert await other.committed("f") == [b"a", b"b", b"d"], "7 is open again in the fork"


async def test_forking_restores_deleted_records_and_transaction_outcomes(cluster):
    harness, leader, other = cluster
    harness.grace_ms = 1_000
    harness.topic("t")
    partition = await harness.hand_over("t", leader)
    await leader.produce("t", transactional(7, 0, b"aborted"))
    assert await leader.mark("t", 7, commit=False) == 0
    await leader.produce("t", transactional(8, 0, b"committed"))
    assert await leader.mark("t", 8, commit=True) == 0
    await leader.produce("t", transactional(9, 0, b"open"))
    await leader.produce("t", batch(b"plain"))
    assert await leader.partitions.trim_all([(partition, 6)], keep=True) == [None]
    assert (partition.log_start_offset, partition.high_watermark) == (6, 6)
    await fork(harness, leader, "t", "f", with_kept=True)
    forked = await harness.hand_over("f", other)
    assert (forked.log_start_offset, partition.log_start_offset) == (0, 6)
    assert {b"aborted", b"committed", b"open", b"plain"} <= set(await other.values("f"))
    assert await other.committed("f") == [b"committed", b"plain"]


class Source:
    """A partition with random content, and the transactions that its markers complete."""

    def __init__(self, rng):
        self._rng = rng
        self._sequences = {}
        self.batches = []
        """(base offset, end offset, values, producer id, None or whether the batch commits)"""

    async def grow(self, leader):
        number = len(self.batches)
        open_ids = self.open_at(1 << 60)
        if open_ids and self._rng.random() < 0.3:
            pid, commits = self._rng.choice(sorted(open_ids)), self._rng.random() < 0.5
            base = (await leader.opened("t")).log_end_offset
            assert await leader.mark("t", pid, commit=commits) == 0
            self.batches.append((base, base + 1, [], pid, commits))
            return
        values = [b"%d/%d" % (number, at) for at in range(self._rng.randint(1, 3))]
        pid = self._rng.choice((-1, -1, 1, 2, 3))
        records = batch(*values)
        if pid >= 0:
            sequence = self._sequences.get(pid, 0)
            self._sequences[pid] = sequence + len(values)
            records = transactional(pid, sequence, *values)
        response = await leader.produce("t", records)
        assert response.error_code == 0
        base = response.base_offset
        self.batches.append((base, base + len(values), values, pid, None))

    def open_at(self, end):
        found = set()
        for base, _, _, pid, commits in self.batches:
            if base < end and pid >= 0:
                found = found - {pid} if commits is not None else found | {pid}
        return found

    def values(self, start, end):
        """Return the values below `end`: all of them, and the committed ones."""
        everything, committed, pending = [], [], {}
        for base, stop, values, pid, commits in self.batches:
            if stop > end:
                break
            if commits is not None:
                committed += pending.pop(pid, []) if commits else []
                pending.pop(pid, None)
            else:
                kept = [(base + at, value) for at, value in enumerate(values) if base + at >= start]
                everything += kept
                if pid < 0:
                    committed += kept
                else:
                    pending.setdefault(pid, []).extend(kept)
        return [value for _, value in everything], [value for _, value in sorted(committed)]


@pytest.mark.parametrize("seed", range(25))
async def test_forks_of_random_logs_contain_the_decided_records_below_the_fork_point(cluster, seed):
    harness, leader, other = cluster
    rng, source = Random(seed), Source(Random(seed))
    harness.topic("t")
    partition = await harness.hand_over("t", leader)
    for _ in range(rng.randint(5, 40)):
        await source.grow(leader)
        if rng.random() < 0.1:
            await leader.storage.upload()
        if rng.random() < 0.05:
            start = rng.randint(partition.log_start_offset, partition.high_watermark)
            await leader.partitions.trim(partition, start)
    for number in range(3):
        start, name = partition.log_start_offset, f"f{number}"
        requested = WantedPoint(offset=rng.randint(start, partition.high_watermark))
        point = await fork(harness, leader, "t", name, NOWHERE if number == 0 else requested)
        everything, committed = source.values(start, point.end_offset)
        forked = await harness.hand_over(name, other)
        await other.storage.flush()
        found = await other.values_from(name, start)
        assert [value for value in found if b"/" in value] == everything, "without markers"
        assert await other.committed(name, start) == committed
        assert forked.last_stable_offset == forked.high_watermark
        assert (await other.produce(name, batch(b"own"))).error_code == 0
        # Again from the objects, by a leader that has nothing in memory.
        await harness.hand_over(name, leader)
        assert await leader.committed(name, start) == [*committed, b"own"]
    harness.image.check_invariants()


@pytest.mark.parametrize(
    ("configs", "request_"),
    [
        ({"retention.ms": "1"}, None),
        ({FORK_SOURCE: "t"}, ForkRequest("t", -1, {})),
        ({FORK_SOURCE: "t", "penstock.fork.timestamp.ms": " 7"}, ForkRequest("t", 7, {})),
        (
            {FORK_SOURCE: "t", "penstock.fork.deleted.records": "true"},
            ForkRequest("t", -1, {}, with_kept=True),
        ),
        ({FORK_SOURCE: "t", "penstock.fork.deleted.records": "false"}, ForkRequest("t", -1, {})),
        (
            {FORK_SOURCE: "t", "penstock.fork.offsets": "0:5,12:0"},
            ForkRequest("t", -1, {0: WantedPoint(offset=5), 12: WantedPoint(offset=0)}),
        ),
    ],
)
def test_fork_options_are_parsed(configs, request_):
    given = dict(configs)
    assert take_fork_request(given) == request_
    assert not {"penstock.fork.timestamp.ms", "penstock.fork.offsets"} & given.keys()


@pytest.mark.parametrize("offsets", ["", "0", "0:", ":1", "0:-1", "0:1,", "0:1,0:2", "a:1", "0:²"])
def test_invalid_fork_offsets_are_rejected(offsets):
    with pytest.raises(KafkaError, match=r"penstock\.fork\.offsets") as caught:
        take_fork_request({FORK_SOURCE: "t", "penstock.fork.offsets": offsets})
    assert caught.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    "given",
    [
        {"penstock.fork.deleted.records": "true"},
        {FORK_SOURCE: "t", "penstock.fork.deleted.records": "yes"},
        {
            FORK_SOURCE: "t",
            "penstock.fork.deleted.records": "true",
            "penstock.fork.timestamp.ms": "7",
        },
        {
            FORK_SOURCE: "t",
            "penstock.fork.deleted.records": "true",
            "penstock.fork.offsets": "0:5",
        },
    ],
)
def test_restoring_only_a_part_of_a_deleted_log_is_rejected(given):
    with pytest.raises(KafkaError) as caught:
        take_fork_request(given)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
