"""The journal loses no acknowledged entry and rejects torn writes."""

import os
from pathlib import Path

import pytest

from penstock.controller.api.errors import JournalCorrupt, JournalStateLost
from penstock.controller.raft.directory import LocalFiles
from penstock.controller.raft.journal import Journal, Recovered
from penstock.controller.raft.messages import Base, Entry, HardState, Members

MEMBERS = Members((0, 1, 2))
BASE = Base(0, 0, 0, MEMBERS)
ENTRIES = [
    Entry(1, 1, 0, [b"a"]),
    Entry(2, 1, 1, [b"bb", b"ccc"]),
    Entry(3, 2, 3, [b"d" * 40], MEMBERS),
]
STATES = [HardState(1, 0), HardState(1, 0), HardState(2, 1)]


class Owner:
    """Implement `controller.raft.directory.JournalOwner` in memory."""

    def __init__(self, directory_id: str = "d", journal_number: int = 0) -> None:
        self.directory_id = directory_id
        self.journal_number = journal_number

    def record_journal(self, number: int) -> None:
        self.journal_number = number


def write(directory: Path) -> tuple[Path, list[int]]:
    """Write a journal of three frames. Return the file and its length after each frame."""
    journal = Journal(LocalFiles(directory), Owner())
    journal.open()
    journal.start(BASE)
    path = next(directory.glob("*.journal"))
    sizes = [path.stat().st_size]
    for entry, state in zip(ENTRIES, STATES, strict=True):
        journal.append(state, None, [entry])
        sizes.append(path.stat().st_size)
    journal.close()
    return path, sizes


def reopen(directory: Path) -> Recovered:
    return Journal(LocalFiles(directory), Owner()).open()


def test_all_appended_entries_exist_after_a_restart(tmp_path: Path) -> None:
    write(tmp_path)
    assert reopen(tmp_path) == Recovered(HardState(2, 1), BASE, ENTRIES)


def test_a_file_cut_at_every_byte_recovers_to_the_last_whole_frame(tmp_path: Path) -> None:
    path, sizes = write(tmp_path / "whole")
    whole = path.read_bytes()
    for length in range(sizes[0], len(whole)):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / path.name).write_bytes(whole[:length])
        count = sum(size <= length for size in sizes) - 1
        journal = Journal(LocalFiles(directory), Owner())
        recovered = journal.open()
        assert recovered.entries == ENTRIES[:count]
        assert recovered.hard == (STATES[count - 1] if count else HardState())
        assert recovered.cut_bytes == length - sizes[count]
        journal.start(BASE)
        added = Entry(count + 1, 5, 0, [b"next"])
        journal.append(None, None, [added])
        journal.close()
        assert reopen(directory).entries == [*ENTRIES[:count], added]


def test_recovered_entries_are_synced_before_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last process was killed between the write and the fsync of its last frame. The entries
    must not be acknowledged while they are only in the page cache.
    """
    path, _ = write(tmp_path)
    synced: list[Path] = []
    fdatasync = os.fdatasync

    def note(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink())
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", note)
    assert reopen(tmp_path).entries == ENTRIES
    assert path in synced


def test_a_segment_without_its_first_frame_is_rejected(tmp_path: Path) -> None:
    """A segment gets its final name only once its first frame is on disk."""
    path, sizes = write(tmp_path)
    for length in range(sizes[0]):
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(JournalCorrupt):
            reopen(tmp_path)


def test_a_flipped_bit_is_an_error_except_in_the_last_frame(tmp_path: Path) -> None:
    path, sizes = write(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        if at < sizes[-2]:
            with pytest.raises(JournalCorrupt):
                reopen(tmp_path)
        else:
            assert reopen(tmp_path).entries == ENTRIES[:-1]


def test_a_damaged_older_segment_and_a_missing_segment_are_errors(tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    for _ in range(2):
        journal = Journal(LocalFiles(tmp_path), Owner())
        journal.open()
        journal.start(BASE)
        journal.close()
    middle = sorted(tmp_path.glob("*.journal"))[1]
    content = middle.read_bytes()
    middle.unlink()
    with pytest.raises(JournalCorrupt, match="missing"):
        reopen(tmp_path)
    middle.write_bytes(content)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(JournalCorrupt):
        reopen(tmp_path)


def test_a_rewritten_index_replaces_everything_after_it(tmp_path: Path) -> None:
    journal = Journal(LocalFiles(tmp_path), Owner())
    journal.open()
    journal.start(BASE)
    journal.append(HardState(1, 0), None, ENTRIES[:2])
    other = Entry(2, 3, 1, [b"other"])
    journal.append(HardState(3, 2), None, [other])
    journal.close()
    assert reopen(tmp_path) == Recovered(HardState(3, 2), BASE, [ENTRIES[0], other])


def test_a_snapshot_replaces_a_log_that_it_does_not_continue(tmp_path: Path) -> None:
    write(tmp_path)
    journal = Journal(LocalFiles(tmp_path), Owner())
    journal.open()
    journal.start(BASE)
    ahead = Base(9, 4, 20, MEMBERS)
    journal.append(HardState(4), ahead, [Entry(10, 4, 20, [b"x"])])
    journal.close()
    assert reopen(tmp_path) == Recovered(HardState(4), ahead, [Entry(10, 4, 20, [b"x"])])


def test_segments_after_a_snapshot_are_deleted_and_the_hard_state_survives(tmp_path: Path) -> None:
    write(tmp_path)
    journal = Journal(LocalFiles(tmp_path), Owner())
    journal.open()
    journal.start(BASE)
    journal.append(None, None, [Entry(4, 2, 4, [b"e"])])
    journal.drop_before(Base(2, 1, 3, MEMBERS))
    assert [entry.index for entry in reopen(tmp_path).entries] == [3, 4]
    journal.drop_before(Base(4, 2, 5, MEMBERS))
    journal.append(None, None, [Entry(5, 2, 5, [b"f"])])
    journal.close()
    assert reopen(tmp_path) == Recovered(
        HardState(2, 1), Base(4, 2, 5, MEMBERS), [Entry(5, 2, 5, [b"f"])]
    )
    assert len(list(tmp_path.glob("*.journal"))) == 1


def test_entries_after_a_snapshot_survive_the_deletion_of_earlier_segments(tmp_path: Path) -> None:
    entries = [Entry(index, 1, index - 1, [b"%d" % index]) for index in range(1, 10)]
    journal = Journal(LocalFiles(tmp_path), Owner())
    for first in (0, 3, 6):
        journal.close()
        journal = Journal(LocalFiles(tmp_path), Owner())
        journal.open()
        journal.start(BASE)
        for entry in entries[first : first + 3]:
            journal.append(None, None, [entry])
    base = Base(4, 1, 4, MEMBERS)
    journal.drop_before(base)
    journal.close()
    assert len(list(tmp_path.glob("*.journal"))) == 3, (
        "the first segment holds nothing after the base"
    )
    assert reopen(tmp_path) == Recovered(HardState(), base, entries[4:])
    min(tmp_path.glob("*.journal")).unlink()
    with pytest.raises(JournalCorrupt, match="entries begin at 7 after base 4"):
        reopen(tmp_path)


def begun(directory: Path, owner: Owner) -> None:
    journal = Journal(LocalFiles(directory), owner)
    journal.open()
    journal.start(BASE)
    journal.append(HardState(1, 0), None, ENTRIES[:1])
    journal.close()


def test_a_journal_that_was_emptied_cannot_be_opened(tmp_path: Path) -> None:
    owner = Owner()
    begun(tmp_path, owner)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(
        JournalStateLost,
        match=r"the journal is empty.*penstock quorum remove.*empty data directory",
    ):
        Journal(LocalFiles(tmp_path), owner).open()


def test_a_journal_restored_from_an_older_copy_cannot_be_opened(tmp_path: Path) -> None:
    owner = Owner()
    begun(tmp_path, owner)
    copy = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    begun(tmp_path, owner)
    for path in tmp_path.iterdir():
        path.unlink()
    for name, data in copy.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(
        JournalStateLost, match="segment 1 is the newest, segment 2 was already begun"
    ):
        Journal(LocalFiles(tmp_path), owner).open()


def test_a_journal_of_another_directory_cannot_be_opened(tmp_path: Path) -> None:
    begun(tmp_path, Owner("one"))
    with pytest.raises(JournalStateLost, match="belongs to data directory one, this is other"):
        Journal(LocalFiles(tmp_path), Owner("other")).open()


def test_a_crash_before_the_segment_number_is_recorded_loses_nothing(tmp_path: Path) -> None:
    begun(tmp_path, Owner())
    assert Journal(LocalFiles(tmp_path), Owner(journal_number=0)).open().entries == ENTRIES[:1]


def test_the_error_of_a_corrupt_journal_says_how_to_rejoin(tmp_path: Path) -> None:
    path, sizes = write(tmp_path)
    data = bytearray(path.read_bytes())
    data[sizes[0] + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalCorrupt) as failure:
        reopen(tmp_path)
    assert "penstock quorum remove" in str(failure.value)
    assert "empty data directory" in str(failure.value)
    assert "Do not repair, move or restore" in str(failure.value)
