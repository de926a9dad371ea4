"""The controller's log on disk: append-only segment files of checksummed frames, one frame and one fdatasync per batch.

Invariants: `append` returns only when the frame is on the disk; one frame is written at a time, so a crash can tear the last frame of the
last segment and nothing else. At open a broken end is cut; a broken frame *before* a whole one, or in an older segment, is damage to
acknowledged data and refuses to open. After a failed write or fsync the object is dead: what reached the disk is unknown, and a second
fsync may lie (Linux drops the dirty pages and reports success). Blocking: call it from its one thread (`controller.quorum`).
Must not know what a record is. Source: Raft reference 5.1; Rebello et al., "Can Applications Recover from fsync Failures?" (ATC 2020).

Frame (little endian): magic u32, payload bytes u32, base offset i64, epoch i64, records u32, CRC32C of the payload u32, CRC32C of the
header before this field u32; then the payload: per record its length u32 and its bytes. An empty frame tells only the epoch. A segment
`<first offset, 20 digits>.journal` begins with an empty frame, so that the epoch outlives the segments before it.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from controller.errors import JournalCorrupt, JournalFailed
from controller.metadata.records import ControllerEpoch, MetadataOffset

_MAGIC = 0x4A50_5331  # "1SPJ" in file order
_HEADER = struct.Struct("<IIqqIII")
_HEADER_CHECKED_BYTES = _HEADER.size - 4
_LENGTH = struct.Struct("<I")
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
_SUFFIX = ".journal"
FRAME_BYTES_MAX = 64 << 20
"""Larger batches are a programmer's error: the runtime's queue holds less."""


@dataclass(frozen=True, slots=True)
class Frame:
    base_offset: MetadataOffset
    epoch: ControllerEpoch
    records: list[bytes]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the journal held when it was opened. `cut_bytes`: length of the torn end that was removed."""

    first_offset: MetadataOffset
    epoch: ControllerEpoch
    records: list[bytes]
    cut_bytes: int

    @property
    def end_offset(self) -> MetadataOffset:
        return MetadataOffset(self.first_offset + len(self.records))


def encode_frame(base_offset: MetadataOffset, epoch: ControllerEpoch, records: Sequence[bytes]) -> bytes:
    """One frame. Cost: a copy and a CRC of the payload."""
    parts: list[bytes] = []
    for record in records:
        parts.append(_LENGTH.pack(len(record)))
        parts.append(record)
    payload = b"".join(parts)
    assert len(payload) <= FRAME_BYTES_MAX, f"a frame of {len(payload)} bytes"
    header = _HEADER.pack(_MAGIC, len(payload), base_offset, epoch, len(records), crc32c(payload), 0)[:_HEADER_CHECKED_BYTES]
    return b"".join((header, _LENGTH.pack(crc32c(header)), payload))


def parse_frame(data: memoryview, at: int) -> Frame | str:
    """The frame at `at`, or what is wrong with it."""
    if len(data) - at < _HEADER.size:
        return f"{len(data) - at} bytes are less than a frame header"
    magic, length, base_offset, epoch, count, payload_crc, header_crc = _HEADER.unpack_from(data, at)
    if magic != _MAGIC or crc32c(data[at : at + _HEADER_CHECKED_BYTES]) != header_crc:
        return "the frame header does not match its checksum"
    start = at + _HEADER.size
    payload = data[start : start + length]
    if len(payload) < length:
        return f"the frame says {length} bytes, {len(payload)} are there"
    if crc32c(payload) != payload_crc:
        return "the records do not match their checksum"
    records: list[bytes] = []
    position = 0
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(payload, position)
        position += _LENGTH.size
        records.append(bytes(payload[position : position + size]))
        position += size
    return Frame(MetadataOffset(base_offset), ControllerEpoch(epoch), records, _HEADER.size + length)


class Journal:
    """One directory of segments, opened for appending by one thread of one process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None
        self._path = directory
        self._end = MetadataOffset(0)
        self._failed = False

    @property
    def end_offset(self) -> MetadataOffset:
        return self._end

    def open(self) -> Recovered:
        """Read everything and cut a torn end. Raises JournalCorrupt. About 200 MB/s."""
        self._directory.mkdir(parents=True, exist_ok=True)
        segments = self._segments()
        first = segments[0] if segments else MetadataOffset(0)
        records: list[bytes] = []
        epoch = ControllerEpoch(0)
        cut_bytes = 0
        for index, start in enumerate(segments):
            expected = MetadataOffset(first + len(records))
            path = self._segment_path(start)
            if start != expected:
                raise JournalCorrupt(str(path), 0, f"it should begin at offset {expected}")
            frames, cut_bytes = _read_segment(path, start, last=index == len(segments) - 1)
            for frame in frames:
                records.extend(frame.records)
                epoch = max(epoch, frame.epoch)
        self._end = MetadataOffset(first + len(records))
        return Recovered(first, epoch, records, cut_bytes)

    def reset(self) -> None:
        """Forget every segment: a newer snapshot has replaced what they hold. Call before `start`."""
        for start in self._segments():
            self._segment_path(start).unlink()
        sync_directory(self._directory)
        self._end = MetadataOffset(0)

    def start(self, start: MetadataOffset, epoch: ControllerEpoch) -> None:
        """Go on in the last segment, or in a new one at `start` if there is none, under a new epoch; durable when it returns."""
        segments = self._segments()
        assert not segments or start == self._end, f"start at {start}, the journal ends at {self._end}"
        self._open_segment(segments[-1] if segments else start, start, epoch)

    def roll(self, epoch: ControllerEpoch) -> None:
        """Begin a new segment at the end; the earlier ones are never written again and can be dropped later."""
        if self._segments()[-1] != self._end:
            self._open_segment(self._end, self._end, epoch)

    def _open_segment(self, name: MetadataOffset, end: MetadataOffset, epoch: ControllerEpoch) -> None:
        try:
            self.close()
            self._path = self._segment_path(name)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._end = end
            self._write(encode_frame(end, epoch, ()))
            sync_directory(self._directory)
        except OSError as error:
            self._failed = True
            raise JournalFailed(str(self._path), error) from error

    def append(self, base_offset: MetadataOffset, epoch: ControllerEpoch, records: Sequence[bytes]) -> None:
        """Durable when it returns. Raises JournalFailed, after which nothing may be appended any more."""
        assert not self._failed, "the journal failed before; the process should have ended"
        assert base_offset == self._end, f"append at {base_offset}, the journal ends at {self._end}"
        try:
            self._write(encode_frame(base_offset, epoch, records))
        except OSError as error:
            self._failed = True
            raise JournalFailed(str(self._path), error) from error
        self._end = MetadataOffset(base_offset + len(records))

    def drop_before(self, offset: MetadataOffset) -> MetadataOffset:
        """Delete segments that hold only records below `offset`; returns the first offset that is left."""
        segments = self._segments()
        while len(segments) > 1 and segments[1] <= offset:
            self._segment_path(segments.pop(0)).unlink()
        sync_directory(self._directory)
        return segments[0]

    def close(self) -> None:
        """Let go of the file. Everything appended is durable already."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, frame: bytes) -> None:
        assert self._file is not None, "start() first"
        view = memoryview(frame)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)

    def _segments(self) -> list[MetadataOffset]:
        names = (path.stem for path in self._directory.glob(f"*{_SUFFIX}"))
        return sorted(MetadataOffset(int(name)) for name in names if name.isdecimal())

    def _segment_path(self, start: MetadataOffset) -> Path:
        return self._directory / f"{start:020d}{_SUFFIX}"


def _read_segment(path: Path, start: MetadataOffset, *, last: bool) -> tuple[list[Frame], int]:
    data = memoryview(path.read_bytes())
    frames: list[Frame] = []
    at = 0
    expected = start
    while at < len(data):
        frame = parse_frame(data, at)
        if not isinstance(frame, Frame):
            if not last or _whole_frame_follows(data, at + 1, expected):
                raise JournalCorrupt(str(path), at, frame)
            _cut(path, at)
            break
        if frame.base_offset != expected:
            raise JournalCorrupt(str(path), at, f"the frame begins at offset {frame.base_offset}, not at {expected}")
        frames.append(frame)
        at += frame.size_bytes
        expected = MetadataOffset(expected + len(frame.records))
    return frames, len(data) - at


def _whole_frame_follows(data: memoryview, at: int, expected: MetadataOffset) -> bool:
    """True if a valid frame of later records lies behind a broken one: then it is not the torn end that is broken."""
    raw = bytes(data[at:])
    found = raw.find(_MAGIC_BYTES)
    while found >= 0:
        frame = parse_frame(data, at + found)
        if isinstance(frame, Frame) and frame.base_offset >= expected:
            return True
        found = raw.find(_MAGIC_BYTES, found + 1)
    return False


def _cut(path: Path, size_bytes: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(file, size_bytes)
        os.fsync(file)
    finally:
        os.close(file)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
