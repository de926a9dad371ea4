"""The journal loses nothing that was acknowledged and accepts nothing that was torn."""

import os
from pathlib import Path

import pytest

from controller.errors import JournalCorrupt, JournalFailed, QuorumClosed, SnapshotMissing
from controller.journal import Journal
from controller.metadata.records import ControllerEpoch, MetadataOffset
from controller.quorum import SingleQuorum

EPOCH = ControllerEpoch(1)
BATCHES = ([b"a"], [b"bb", b"ccc"], [b"d" * 40])
RECORDS = [record for batch in BATCHES for record in batch]


def offset(number: int) -> MetadataOffset:
    return MetadataOffset(number)


def write(directory: Path) -> tuple[Path, list[int]]:
    """A journal of three batches; the file and its length after each of them."""
    journal = Journal(directory)
    journal.open()
    journal.start(offset(0), EPOCH)
    path = next(directory.glob("*.journal"))
    sizes = [path.stat().st_size]
    for batch in BATCHES:
        journal.append(journal.end_offset, EPOCH, batch)
        sizes.append(path.stat().st_size)
    journal.close()
    return path, sizes


def test_everything_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    write(tmp_path)
    recovered = Journal(tmp_path).open()
    assert recovered.records == RECORDS
    assert (recovered.first_offset, recovered.end_offset, recovered.epoch, recovered.cut_bytes) == (0, 4, 1, 0)


def test_a_file_cut_at_every_byte_recovers_to_the_last_whole_batch(tmp_path: Path) -> None:
    path, sizes = write(tmp_path / "whole")
    whole = path.read_bytes()
    for length in range(len(whole)):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / path.name).write_bytes(whole[:length])
        batches = max(0, sum(size <= length for size in sizes) - 1)
        expected = [record for batch in BATCHES[:batches] for record in batch]
        journal = Journal(directory)
        assert journal.open().records == expected
        journal.start(journal.end_offset, ControllerEpoch(2))
        journal.append(journal.end_offset, ControllerEpoch(2), [b"next"])
        journal.close()
        assert Journal(directory).open().records == [*expected, b"next"]


def test_a_flipped_bit_is_refused_unless_it_is_in_the_last_batch(tmp_path: Path) -> None:
    path, sizes = write(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        if at < sizes[-2]:
            with pytest.raises(JournalCorrupt):
                Journal(tmp_path).open()
        else:
            assert Journal(tmp_path).open().records == RECORDS[:-1]


def test_damage_in_an_older_segment_is_refused(tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    journal = Journal(tmp_path)
    journal.open()
    journal.start(offset(4), EPOCH)
    journal.roll(EPOCH)
    journal.append(offset(4), EPOCH, [b"later"])
    journal.close()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(JournalCorrupt):
        Journal(tmp_path).open()


def test_segments_behind_a_snapshot_are_deleted_and_the_epoch_survives(tmp_path: Path) -> None:
    write(tmp_path)
    journal = Journal(tmp_path)
    journal.open()
    journal.start(offset(4), ControllerEpoch(7))
    journal.roll(ControllerEpoch(7))
    assert journal.drop_before(offset(3)) == 0
    assert journal.drop_before(offset(4)) == 4
    journal.append(offset(4), ControllerEpoch(7), [b"e"])
    journal.close()
    recovered = Journal(tmp_path).open()
    assert (recovered.first_offset, recovered.records, recovered.epoch) == (4, [b"e"], 7)


async def test_a_quorum_of_one_commits_reads_and_raises_its_epoch(tmp_path: Path) -> None:
    quorum = SingleQuorum(tmp_path)
    await quorum.start(None, ControllerEpoch(0))
    epoch = quorum.leadership.epoch
    assert await quorum.propose(epoch, [b"one", b"two"]) == 2
    assert await quorum.propose(epoch, [b"three"]) == 3
    assert quorum.read(offset(1), 1).records == [b"two"]
    assert quorum.read(offset(1), 100).records == [b"two", b"three"]
    assert quorum.read(offset(3), 100).records == []
    await quorum.close()
    with pytest.raises(QuorumClosed):
        await quorum.propose(epoch, [b"late"])

    again = SingleQuorum(tmp_path)
    await again.start(None, ControllerEpoch(0))
    assert again.leadership.epoch == epoch + 1
    assert again.read(offset(0), 100).records == [b"one", b"two", b"three"]
    await again.drop_before(offset(2))
    await again.propose(again.leadership.epoch, [b"four"])
    await again.drop_before(offset(3))
    assert again.first_offset == 3
    assert again.read(offset(3), 100).records == [b"four"]
    await again.close()


async def test_a_gap_between_snapshot_and_journal_is_refused_and_a_newer_snapshot_replaces_the_journal(tmp_path: Path) -> None:
    quorum = SingleQuorum(tmp_path)
    await quorum.start(offset(10), ControllerEpoch(5))
    assert (quorum.first_offset, quorum.leadership.epoch) == (10, 6)
    await quorum.propose(ControllerEpoch(6), [b"ten"])
    await quorum.close()
    with pytest.raises(SnapshotMissing):
        await SingleQuorum(tmp_path).start(offset(9), ControllerEpoch(5))
    behind = SingleQuorum(tmp_path)
    await behind.start(offset(20), ControllerEpoch(5))
    assert (behind.first_offset, behind.committed_offset) == (20, 20)
    await behind.close()


async def test_a_failed_fsync_ends_the_quorum_and_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quorum = SingleQuorum(tmp_path)
    await quorum.start(None, ControllerEpoch(0))
    epoch = quorum.leadership.epoch
    await quorum.propose(epoch, [b"kept"])
    calls: list[int] = []

    def fail_once(file: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail_once)
    with pytest.raises(JournalFailed):
        await quorum.propose(epoch, [b"lost"])
    with pytest.raises(JournalFailed):
        await quorum.propose(epoch, [b"after"])
    assert len(calls) == 1, "an fsync after a failed one proves nothing"
    assert quorum.committed_offset == 1
    assert not quorum.leadership.active
    with pytest.raises(JournalFailed):
        await quorum.wait_committed(offset(1))
    await quorum.close()
