"""A quorum of one controller with the interface of larger ones."""

import asyncio
import os
from pathlib import Path
from random import Random

import pytest

from penstock.controller.api.errors import (
    JournalFailed,
    NotLeader,
    QuorumClosed,
    SnapshotCorrupt,
    SnapshotMissing,
)
from penstock.controller.backup.snapshots import SnapshotStore
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.codec import encode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ClusterRecord, ControllerEpoch, MetadataOffset
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.raft.core_config import CoreConfig
from penstock.controller.raft.directory import LocalDirectory
from penstock.controller.raft.messages import Base, Members, Message
from penstock.controller.raft.replicated_log import RaftQuorum
from penstock.controller.standby import Standby
from penstock.objectstore.memory import MemoryStore
from tests.support.waiting import PATIENCE_S

MEMBERS = Members((0,))


class Nowhere:
    def send(self, message: Message) -> None:
        raise AssertionError(f"a quorum of one sends no messages: {message}")


def offset(number: int) -> MetadataOffset:
    return MetadataOffset(number)


def make(directory: Path) -> RaftQuorum:
    opened = LocalDirectory(directory)
    identity = opened.open()
    identity.claim("c", joins=False)
    identity.close()  # only the lock, because several quorums of one test follow each other
    return RaftQuorum(opened, identity, CoreConfig(0), {0: "here:1"}, Random(1))


async def begin(quorum: RaftQuorum, snapshot: Base | None = None) -> ControllerEpoch:
    await quorum.start(MEMBERS, snapshot, Nowhere())
    async with asyncio.timeout(PATIENCE_S):
        while not quorum.leadership.active:
            await quorum.wait_changed()
    return quorum.leadership.epoch


async def test_a_quorum_of_one_commits_reads_and_increments_its_epoch(tmp_path: Path) -> None:
    quorum = make(tmp_path)
    epoch = await begin(quorum)
    assert await quorum.propose(epoch, [b"one", b"two"]) == 2
    assert await quorum.propose(epoch, [b"three"]) == 3
    await quorum.confirm(epoch)
    assert quorum.read(offset(1), 1).records == [b"two"]
    assert quorum.read(offset(1), 100).records == [b"two", b"three"]
    assert quorum.read(offset(3), 100).records == []
    with pytest.raises(NotLeader):
        await quorum.propose(ControllerEpoch(epoch - 1), [b"of an epoch that is over"])
    await quorum.close()
    with pytest.raises(QuorumClosed):
        await quorum.propose(epoch, [b"late"])

    again = make(tmp_path)
    assert await begin(again) == epoch + 1
    assert again.read(offset(0), 100).records == [b"one", b"two", b"three"]
    await again.drop_before(offset(2))
    assert again.first_offset == 2
    await again.propose(again.leadership.epoch, [b"four"])
    assert again.point_at(offset(4)).offset == 4
    await again.drop_before(offset(3))
    assert again.first_offset == 3
    assert again.read(offset(3), 100).records == [b"four"]
    await again.close()
    with pytest.raises(SnapshotMissing):
        await make(tmp_path).start(MEMBERS, None, Nowhere())


async def test_a_gap_between_snapshot_and_journal_is_an_error(tmp_path: Path) -> None:
    """Without a gap, a newer snapshot replaces the journal."""
    quorum = make(tmp_path)
    epoch = await begin(quorum, Base(7, 5, 10, MEMBERS))
    assert (quorum.first_offset, epoch) == (10, 6)
    assert await quorum.propose(epoch, [b"ten"]) == 11
    await quorum.close()
    early = make(tmp_path)
    with pytest.raises(SnapshotMissing):
        await early.start(MEMBERS, Base(6, 5, 9, MEMBERS), Nowhere())
    await early.close()
    behind = make(tmp_path)
    assert await begin(behind, Base(30, 8, 20, MEMBERS)) == 9
    assert (behind.first_offset, behind.committed_offset) == (20, 20)
    await behind.close()


async def test_an_empty_disk_starts_only_from_the_newest_snapshot(
    tmp_path: Path,
) -> None:
    """The state in the newest snapshot may exist nowhere else: after a rebuild of the quorum, older
    snapshots belong to the previous history.
    """
    older, damaged = (
        Base(7, 5, 10, MEMBERS),
        SnapshotCorrupt("the newest", "it does not match its checksum"),
    )
    empty = make(tmp_path)
    with pytest.raises(SnapshotCorrupt):
        await empty.start(MEMBERS, older, Nowhere(), passed_over=damaged)
    assert not empty.leadership.active
    await empty.close()
    begun = make(tmp_path)
    await begun.propose(await begin(begun, older), [b"after the older snapshot"])
    await begun.close()
    whole = make(tmp_path)
    await whole.start(MEMBERS, older, Nowhere(), passed_over=damaged)
    assert whole.first_offset == 10, "a journal that is there leads on from the older one"
    await whole.close()


async def test_a_failed_fsync_stops_the_quorum_and_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum = make(tmp_path)
    epoch = await begin(quorum)
    await quorum.propose(epoch, [b"kept"])
    calls: list[int] = []

    def fail_once(file: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")

    over = quorum.end_of(epoch)
    monkeypatch.setattr(os, "fdatasync", fail_once)
    with pytest.raises(JournalFailed):
        await quorum.propose(epoch, [b"lost"])
    with pytest.raises(JournalFailed):
        await quorum.propose(epoch, [b"after"])
    assert len(calls) == 1, "an fsync after a failed one proves nothing"
    assert quorum.committed_offset == 1
    assert not quorum.leadership.active
    assert over.done()
    with pytest.raises(JournalFailed):
        await quorum.wait_committed(offset(1))
    await quorum.close()


async def test_a_standby_whose_snapshot_is_ahead_of_its_log_waits_for_the_log(
    tmp_path: Path,
) -> None:
    """A deposed leader loads the snapshot of its successor before it receives the commits of the
    successor.
    """
    quorum = make(tmp_path)
    epoch = await begin(quorum)
    store = MemoryStore()
    config = ControllerConfig(data_dir=tmp_path, cluster_id="c")
    snapshots = SnapshotStore(store, "c", kept=2)
    image = MetadataImage()
    image.apply_all([ClusterRecord("c")])
    await snapshots.save(ImageCopy.of(image), Base(2, epoch, 1, MEMBERS))
    standby = Standby(config, quorum, snapshots)
    await standby.rebuild()
    assert standby.image.end_offset > quorum.committed_offset
    waiting = asyncio.create_task(standby.catch_up())
    await asyncio.wait((waiting,), timeout=0.01)
    assert not waiting.done(), "it must leave the loop to the task that writes the log"
    await quorum.propose(epoch, [encode_record(ClusterRecord("c"))])
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert standby.image.end_offset == quorum.committed_offset
    await quorum.close()


async def test_empty_entries_are_dropped_only_when_a_snapshot_covers_them(
    tmp_path: Path,
) -> None:
    """Each epoch starts with an empty entry. It must not be dropped before there is a snapshot, or
    the next start would require a snapshot that never existed.
    """
    for _ in range(3):
        quorum = make(tmp_path)
        epoch = await begin(quorum)
        await quorum.drop_before(offset(0))
        await quorum.close()
    quorum = make(tmp_path)
    epoch = await begin(quorum)
    await quorum.propose(epoch, [b"one"])
    snapshot = quorum.point_at(offset(1))
    await quorum.close()
    for _ in range(2):
        quorum = make(tmp_path)
        await begin(quorum, snapshot)
        await quorum.drop_before(offset(1))
        assert quorum.first_offset == 1
        await quorum.close()
