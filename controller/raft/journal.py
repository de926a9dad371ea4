"""The log and the hard state of one voter on disk: append-only segment files of frames with
checksums. Each write appends one frame and calls fdatasync once.

See Rebello et al., "Can Applications Recover from fsync Failures?" (ATC 2020).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from crc32c import crc32c

from penstock.controller.api.errors import JournalCorrupt, JournalFailed, JournalStateLost
from penstock.controller.raft.directory import AppendFile, JournalFiles, JournalOwner
from penstock.controller.raft.messages import Base, Entry, HardState, Members

_MAGIC = 0x4A50_5332  # appears as "2SPJ" in the file
_HEADER = struct.Struct("<IIII")
_HEADER_CHECKED_BYTES = _HEADER.size - 4
_CRC = struct.Struct("<I")
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
_SUFFIX = ".journal"
FRAME_BYTES_MAX = 256 << 20
"""Larger frames indicate a bug, because the limits of the runtime and transport queues are
lower.
"""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    hard: HardState | None
    base: Base | None
    entries: list[Entry]
    directory: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Frame)
NEW_HARD_STATE = HardState()
NEW_BASE = Base(0, 0, 0, Members(()))
"""The base of an empty journal."""


@dataclass(slots=True)
class Recovered:
    """The contents of the journal when it was opened. `cut_bytes`: length of the torn tail that was
    removed.
    """

    hard: HardState = NEW_HARD_STATE
    base: Base = NEW_BASE
    entries: list[Entry] = field(default_factory=list[Entry])
    cut_bytes: int = 0

    def replay(self, frame: Frame) -> None:
        """Apply a frame. The first segment that is left may start before the base of a later one,
        so positions are relative to its own first entry.
        """
        self.hard = frame.hard or self.hard
        if frame.base is not None:
            at = frame.base.index - self._first_index
            continues = at < 0 or (
                at < len(self.entries) and self.entries[at].term == frame.base.term
            )
            self.entries = self.entries[max(0, at + 1) :] if continues else []
            self.base = frame.base
        for entry in frame.entries:
            del self.entries[max(0, entry.index - self._first_index) :]
            self.entries.append(entry)

    @property
    def _first_index(self) -> int:
        return self.entries[0].index if self.entries else self.base.index + 1


def encode_frame(
    hard: HardState | None, base: Base | None, entries: Sequence[Entry], directory: str = ""
) -> bytes:
    """Return one frame. directory: set only in the first frame of a segment. This copies the
    payload and computes its CRC.
    """
    payload = _encode((hard, base, entries, directory) if directory else (hard, base, entries))
    assert len(payload) <= FRAME_BYTES_MAX, f"a frame of {len(payload)} bytes"
    header = _HEADER.pack(_MAGIC, len(payload), crc32c(payload), 0)[:_HEADER_CHECKED_BYTES]
    return b"".join((header, _CRC.pack(crc32c(header)), payload))


def parse_frame(data: memoryview, at: int) -> tuple[Frame, int] | str:
    """Return the frame at `at` and its size in bytes, or the reason why it is invalid."""
    if len(data) - at < _HEADER.size:
        return f"{len(data) - at} bytes are less than a frame header"
    magic, length, payload_crc, header_crc = _HEADER.unpack_from(data, at)
    if magic != _MAGIC or crc32c(data[at : at + _HEADER_CHECKED_BYTES]) != header_crc:
        return "the frame header does not match its checksum"
    start = at + _HEADER.size
    payload = data[start : start + length]
    if len(payload) < length:
        return f"the frame says {length} bytes, {len(payload)} are there"
    if crc32c(payload) != payload_crc:
        return "the entries do not match their checksum"
    try:
        return _decoder.decode(payload), _HEADER.size + length
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"the entries cannot be decoded: {error}"


class Journal:
    """Appends to one directory of segments. Only one thread of one process may use it.

    Frame (little endian): magic u32, payload bytes u32, CRC32C of the payload u32, CRC32C of the
    header before this field u32; then the payload, msgpack [hard state | nil, base | nil, [entry,
    ...], directory id]. A hard state replaces the previous one. A base that continues the log drops
    everything before it; any other base replaces the log. An entry replaces the entry with the same
    index and everything after it. A segment `<number, 20 digits>.journal` starts with a frame with
    hard state, base and directory id, so that earlier segments can be deleted.

    Frames are written one at a time, so a crash can only tear the last frame of the last segment.
    After a failed write or fsync, the journal must not be used: the contents of the disk are
    unknown, and another fsync may report success although data was lost (Linux drops the dirty
    pages). The data directory stores the number of the newest segment, so that an emptied, replaced
    or restored journal is detected.
    """

    def __init__(self, files: JournalFiles, owner: JournalOwner) -> None:
        self._files = files
        self._owner = owner
        self._file: AppendFile | None = None
        self._failed = False
        self._last_index_of: dict[int, int] = {}
        """Highest index in each segment by segment number. A segment can be deleted once a snapshot
        covers this index.
        """
        self._number = 0
        self._hard = HardState()
        self._begins_at = NEW_BASE
        """Base of the last segment. Earlier segments are kept until their last index is at or below
        a base.
        """

    def open(self) -> Recovered:
        """Read the journal at about 200 MB/s, and truncate a torn tail. Raises JournalStateLost if
        segments are missing or belong to another directory. Raises JournalCorrupt for a broken
        frame before an intact one or in an older segment, because acknowledged data is then
        damaged.
        """
        segments = self._segments()
        recovered = Recovered()
        self._number = segments[-1] if segments else 0
        if self._number < self._owner.journal_number:
            found = f"segment {self._number} is the newest" if segments else "the journal is empty"
            raise JournalStateLost(
                str(self._files), f"{found}, segment {self._owner.journal_number} was already begun"
            )
        for at, number in enumerate(segments):
            if number != segments[0] + at:
                raise JournalCorrupt(
                    self._where(number), 0, f"segment {segments[0] + at} before it is missing"
                )
            frames, recovered.cut_bytes = self._read_segment(number, last=number == segments[-1])
            if frames[0].directory != self._owner.directory_id:
                owner = (
                    f"data directory {frames[0].directory or 'unknown'}, this is"
                    f" {self._owner.directory_id}"
                )
                raise JournalStateLost(self._where(number), f"the segment belongs to {owner}")
            self._last_index_of[number] = 0
            for frame in frames:
                recovered.replay(frame)
                self._note(number, frame.entries)
        if recovered.entries and recovered.entries[0].index != recovered.base.index + 1:
            detail = (
                f"entries begin at {recovered.entries[0].index} after base {recovered.base.index}"
            )
            raise JournalCorrupt(str(self._files), 0, detail)
        self._hard = recovered.hard
        return recovered

    def start(self, base: Base) -> int:
        """Start a segment at `base`, the new start of the log. The segment is durable on return.
        Raises JournalFailed.

        Return the number of the segment, which no earlier start of this data directory has used.
        """
        self._roll(base)
        return self._number

    def append(self, hard: HardState | None, base: Base | None, entries: Sequence[Entry]) -> None:
        """Append a frame, which is durable on return. Raises JournalFailed, after which the journal
        cannot be used.
        """
        assert not self._failed, "the journal failed before; the process should have ended"
        try:
            self._write(encode_frame(hard, base, entries))
        except OSError as error:
            self._failed = True
            raise JournalFailed(self._where(self._number), error) from error
        self._hard = hard or self._hard
        self._note(self._number, entries)

    def drop_before(self, base: Base) -> None:
        """Delete segments without entries after `base`, the new start of the log. Start a new
        segment, so that the next call can delete the current one.
        """
        if self._begins_at != base:
            self._roll(base)
        for number in self._segments():
            if number == self._number or self._last_index_of[number] > base.index:
                break
            self._files.remove(_segment_name(number))
            del self._last_index_of[number]
        self._files.sync()

    def close(self) -> None:
        """Close the file. All appended frames are already durable."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _roll(self, base: Base) -> None:
        assert not self._failed, "the journal failed before; the process should have ended"
        name = _segment_name(self._number + 1)
        beside = f"{name}.new"
        try:
            self.close()
            self._file = self._files.create(beside)
            self._write(encode_frame(self._hard, base, (), self._owner.directory_id))
            self._files.rename(beside, name)
            self._files.sync()
            self._owner.record_journal(self._number + 1)
        except OSError as error:
            self._failed = True
            raise JournalFailed(self._where(self._number + 1), error) from error
        self._begins_at = base
        self._number += 1
        self._last_index_of[self._number] = 0

    def _note(self, number: int, entries: Sequence[Entry]) -> None:
        if entries:
            self._last_index_of[number] = max(self._last_index_of[number], entries[-1].index)

    def _write(self, frame: bytes) -> None:
        assert self._file is not None, "start() first"
        self._file.append(frame)
        self._file.sync()

    def _segments(self) -> list[int]:
        names = (
            name.removesuffix(_SUFFIX) for name in self._files.names() if name.endswith(_SUFFIX)
        )
        return sorted(int(name) for name in names if name.isdecimal())

    def _where(self, number: int) -> str:
        return f"{self._files}/{_segment_name(number)}"

    def _read_segment(self, number: int, *, last: bool) -> tuple[list[Frame], int]:
        name = _segment_name(number)
        data = memoryview(self._files.read(name))
        frames: list[Frame] = []
        at = 0
        while at < len(data):
            parsed = parse_frame(data, at)
            if isinstance(parsed, str):
                if not last or not frames or _whole_frame_follows(data, at + 1):
                    raise JournalCorrupt(self._where(number), at, parsed)
                self._files.cut(name, at)
                break
            frame, size_bytes = parsed
            frames.append(frame)
            at += size_bytes
        if not frames:
            raise JournalCorrupt(self._where(number), 0, "the segment is empty")
        return frames, len(data) - at


def _segment_name(number: int) -> str:
    return f"{number:020d}{_SUFFIX}"


def _whole_frame_follows(data: memoryview, at: int) -> bool:
    """Return whether a valid frame follows a broken one. If so, the broken frame is not a torn
    tail.
    """
    raw = bytes(data[at:])
    found = raw.find(_MAGIC_BYTES)
    while found >= 0:
        if not isinstance(parse_frame(data, at + found), str):
            return True
        found = raw.find(_MAGIC_BYTES, found + 1)
    return False
