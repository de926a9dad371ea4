"""The writer over a quorum whose commits are controlled by the test."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.base.ids import Millis
from penstock.controller.active.writer import Runtime, Work
from penstock.controller.api.errors import JournalFailed, NotLeader, QuorumClosed
from penstock.controller.api.messages import Status
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.result import Result
from penstock.controller.metadata.codec import decode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ControllerEpoch, KeyValueRecord, MetadataOffset
from penstock.controller.raft.replicated_log import CommittedRecords, Leadership
from tests.support.waiting import PATIENCE_S


class HeldQuorum:
    """Commit each proposal when the test says so."""

    def __init__(self) -> None:
        self.leadership = Leadership(active=True, epoch=ControllerEpoch(1))
        self.first_offset = MetadataOffset(0)
        self.records: list[bytes] = []
        self.proposed: asyncio.Queue[tuple[Sequence[bytes], asyncio.Future[None]]] = asyncio.Queue()

    @property
    def committed_offset(self) -> MetadataOffset:
        return MetadataOffset(len(self.records))

    async def propose(self, epoch: ControllerEpoch, records: Sequence[bytes]) -> MetadataOffset:
        decision: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.proposed.put_nowait((records, decision))
        await decision
        self.records += records
        return self.committed_offset

    def read(self, offset: MetadataOffset, max_bytes: int) -> CommittedRecords:
        return CommittedRecords(offset, self.records[offset:])

    async def wait_committed(self, offset: MetadataOffset) -> None:
        raise AssertionError("no follower exists here")

    async def drop_before(self, offset: MetadataOffset) -> None:
        raise AssertionError("nothing is dropped here")

    def on_leadership(self, listener: Callable[[Leadership], None]) -> None:
        raise AssertionError("leadership is set by hand here")


def put(key: str) -> Work:
    return lambda _image, _now: Result([KeyValueRecord(key, b"v")], value=key)


def seen(image: MetadataImage, _: Millis) -> Result[list[str]]:
    return Result(value=[key for key, _ in image.kv.items()])


class Fixture:
    def __init__(self, directory: Path, **limits: int) -> None:
        self.quorum = HeldQuorum()
        config = ControllerConfig(data_dir=directory, **limits)
        self.runtime = Runtime(self.quorum, MetadataImage(), config, lambda: Millis(0))
        self.runtime.start()

    async def proposal(self) -> tuple[Sequence[bytes], "asyncio.Future[None]"]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.quorum.proposed.get()


async def test_responses_wait_for_their_commit_and_queued_requests_share_the_next_one(
    tmp_path: Path,
) -> None:
    fixture = Fixture(tmp_path)
    first = asyncio.create_task(fixture.runtime.submit("a", put("a")))
    records, commit_first = await fixture.proposal()
    assert len(records) == 1
    rest = [asyncio.create_task(fixture.runtime.submit(key, put(key))) for key in "bcd"]
    read = asyncio.create_task(fixture.runtime.submit("read", seen))
    look = asyncio.create_task(
        fixture.runtime.with_committed_image(lambda image: (image.end_offset, len(image.kv)))
    )
    await asyncio.sleep(0)
    assert not any(task.done() for task in (first, *rest, read, look))
    commit_first.set_result(None)
    assert (await first).offset == 1
    assert await look == (1, 1), "between two batches the image holds committed records only"
    records, commit_rest = await fixture.proposal()
    assert len(records) == 3
    await asyncio.sleep(0)
    assert not read.done(), (
        "a read sees what is before it in its batch, so it waits for the commit too"
    )
    commit_rest.set_result(None)
    assert [(await task).offset for task in rest] == [2, 3, 4]
    assert (await read).value == ["a", "b", "c", "d"]
    await fixture.runtime.stop()


async def test_a_lost_proposal_stops_the_writer_and_fails_all_its_requests(
    tmp_path: Path,
) -> None:
    fixture = Fixture(tmp_path)
    lost = asyncio.create_task(fixture.runtime.submit("a", put("a")))
    _, decision = await fixture.proposal()
    waiting = asyncio.create_task(fixture.runtime.submit("b", put("b")))
    await asyncio.sleep(0)
    decision.set_exception(JournalFailed("journal", OSError(5, "I/O error")))
    with pytest.raises(QuorumClosed):
        await lost
    with pytest.raises(QuorumClosed):
        await waiting
    with pytest.raises(JournalFailed):
        await fixture.runtime.failed
    with pytest.raises(QuorumClosed):
        await fixture.runtime.submit("c", put("c"))
    with pytest.raises(QuorumClosed):
        await fixture.runtime.with_committed_image(lambda image: image.end_offset)


async def test_a_full_queue_responds_busy_and_an_expired_request_is_not_executed(
    tmp_path: Path,
) -> None:
    fixture = Fixture(tmp_path, queue_count_max=2, queue_bytes_max=100)
    held = asyncio.create_task(fixture.runtime.submit("held", put("held")))
    _, commit = await fixture.proposal()
    expired = asyncio.create_task(
        fixture.runtime.submit("expired", put("expired"), timeout_s=0.01, request_id="r")
    )
    kept = asyncio.create_task(fixture.runtime.submit("kept", put("kept"), size_bytes=90))
    await asyncio.sleep(0)
    assert (await fixture.runtime.submit("one too many", put("x"))).status is Status.CONTROLLER_BUSY
    with pytest.raises(TimeoutError):
        await expired
    commit.set_result(None)
    assert (await held).status is Status.OK
    records, commit = await fixture.proposal()
    assert len(records) == 1
    commit.set_result(None)
    assert (await kept).offset == 2
    assert fixture.runtime.counters.expired == 1
    again = asyncio.create_task(fixture.runtime.submit("expired", put("expired"), request_id="r"))
    (await fixture.proposal())[1].set_result(None)
    assert (await again).offset == 3, (
        "the memory holds no response to a request that was never applied"
    )
    assert (
        await fixture.runtime.submit("too big", put("x"), size_bytes=101)
    ).status is Status.CONTROLLER_BUSY
    await fixture.runtime.stop()


async def test_a_manager_that_raises_fails_its_own_request_only(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)

    def defect(image: MetadataImage, now_ms: Millis) -> Result[None]:
        raise KeyError("oops")

    broken, fine = (
        asyncio.create_task(fixture.runtime.submit("bad", defect)),
        asyncio.create_task(fixture.runtime.submit("ok", put("k"))),
    )
    (await fixture.proposal())[1].set_result(None)
    reply = await broken
    assert reply.status is Status.INVALID_REQUEST
    assert "KeyError" in reply.detail
    assert (await fine).status is Status.OK
    await fixture.runtime.stop()


async def test_a_follower_responds_with_the_leader(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    fixture.quorum.leadership = Leadership(
        active=False, epoch=ControllerEpoch(2), address="other:1"
    )
    with pytest.raises(NotLeader) as not_leader:
        await fixture.runtime.submit("a", put("a"))
    assert not_leader.value.leader == "other:1"
    await fixture.runtime.stop()


def put_bytes(key: str, count: int) -> Work:
    return lambda _image, _now: Result([KeyValueRecord(key, bytes(count))], value=key)


async def test_records_per_proposal_are_limited_however_small_the_requests(
    tmp_path: Path,
) -> None:
    """The remaining records go into the next proposal."""
    fixture = Fixture(tmp_path, batch_bytes_max=1_000)
    first = asyncio.create_task(fixture.runtime.submit("first", put("first")))
    _, commit = await fixture.proposal()
    rest = [
        asyncio.create_task(fixture.runtime.submit(str(number), put_bytes(str(number), 400)))
        for number in range(20)
    ]
    await asyncio.sleep(0)
    sizes: list[int] = []
    while not all(task.done() for task in rest):
        commit.set_result(None)
        records, commit = await fixture.proposal()
        sizes.append(sum(map(len, records)))
        if len(fixture.quorum.records) + len(records) == 21:
            commit.set_result(None)
            await asyncio.gather(first, *rest)
    assert len(sizes) == 7
    assert max(sizes) < 1_000 + 500
    assert [decode_record(record).key for record in fixture.quorum.records] == [
        "first",
        *map(str, range(20)),
    ]
    await fixture.runtime.stop()


async def test_a_request_that_creates_too_many_records_is_rejected_and_changes_nothing(
    tmp_path: Path,
) -> None:
    fixture = Fixture(tmp_path, transaction_bytes_max=1_000)
    large = asyncio.create_task(fixture.runtime.submit("large", put_bytes("large", 2_000)))
    small = asyncio.create_task(fixture.runtime.submit("small", put("small")))
    records, commit = await fixture.proposal()
    commit.set_result(None)
    refused, done = await asyncio.gather(large, small)
    assert (refused.status, done.status) == (Status.INVALID_REQUEST, Status.OK)
    assert "split it" in refused.detail
    assert [decode_record(record) for record in records] == [KeyValueRecord("small", b"v")]
    assert await fixture.runtime.with_committed_image(lambda image: len(image.kv)) == 1
    await fixture.runtime.stop()
