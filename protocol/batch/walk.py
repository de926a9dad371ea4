"""Validate the records of a batch: whether they are intact, their newest timestamp, and which of
them violate the rules of the topic.

Native code does this at 10 to 100 GB/s without the GIL (`native/walk.c`, docs/design/produce.md).
On platforms without it, Python takes 2 us per record.
"""

import ctypes
import platform
from array import array
from pathlib import Path
from typing import Final, NamedTuple

from penstock.base.buffers import Buffer
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.varint import read_varint, read_varlong

DONE: Final = 0
BAD_NUMBER: Final = 1
BAD_LENGTH: Final = 2
BAD_FIELD: Final = 3
BAD_HEADER_COUNT: Final = 4
BAD_HEADER_NAME: Final = 5
BAD_END: Final = 6
BAD_DELTA: Final = 7
BAD_COUNT: Final = 8
BAD_REST: Final = 9

REASONS: Final = {
    BAD_NUMBER: "a number is longer than its type, or has no end",
    BAD_LENGTH: "its length is not that of a record, or exceeds the batch",
    BAD_FIELD: "the length of a field exceeds the record",
    BAD_HEADER_COUNT: "its number of headers is negative, or exceeds the record",
    BAD_HEADER_NAME: "the key of a header is null",
    BAD_END: "its fields do not end where its length says",
    BAD_DELTA: "its offset delta does not belong to its position",
    BAD_COUNT: "the batch ends before it",
    BAD_REST: "bytes follow the last record",
}

NEEDS_KEYS: Final = 1
IGNORES_TIMES: Final = 2
"""Do not check timestamps, because the topic sets them (LogAppendTime)."""
SEQUENTIAL: Final = 4
"""Each offset delta must be the index of its record, as Kafka requires in compressed batches.
Without this flag, all deltas within the batch are accepted; Kafka accepts any delta in uncompressed
batches.
"""

ERRORS_MAX: Final = 100
"""Maximum number of invalid records in a result."""

_NO_TIMESTAMP: Final = -1
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_INDEX, _MAX_TIMESTAMP, _ERRORS, _FIRST = 8, 9, 10, 11
_MOST_BYTES, _BEFORE_BYTES = _INDEX, _MAX_TIMESTAMP
_LZ4_RATIO_MAX: Final = 255
_GIVEN: Final = 8


class Limits(NamedTuple):
    """Requirements on records. low_ms, high_ms: inclusive bounds of timestamps. flags: NEEDS_KEYS,
    IGNORES_TIMES, SEQUENTIAL.
    """

    low_ms: int = _INT64_MIN
    high_ms: int = _INT64_MAX
    flags: int = 0


class RecordFault(NamedTuple):
    """An intact record that violates a rule: it has no key, or its timestamp is outside
    the limits.
    """

    at: int
    is_keyless: bool
    timestamp_ms: int


class PlainSize(NamedTuple):
    """The decompressed size of blocks: at most `most`, and less than `least` only if the encoder is
    unusual.
    """

    least: int
    most: int


class WalkFinding(NamedTuple):
    """The result of validating a batch. code: DONE, or the reason why record `at`, counted from 0,
    is invalid. errors: the first ERRORS_MAX of `error_count` faults. max_timestamp_ms: the newest
    timestamp, or -1 if no timestamp is higher.
    """

    code: int
    at: int
    max_timestamp_ms: int = _NO_TIMESTAMP
    error_count: int = 0
    errors: tuple[RecordFault, ...] = ()


class Walker:
    """Validates one batch after another. Not thread-safe."""

    __slots__ = ("_at", "_job")

    def __init__(self) -> None:
        self._job = array("q", bytes(8 * (_FIRST + 2 * ERRORS_MAX)))
        self._at = self._job.buffer_info()[0]

    def walk(self, data: memoryview, count: int, base_ms: int, limits: Limits) -> WalkFinding:
        """Validate the `count` uncompressed records in `data`."""
        if _native is None or not data:
            return walk_in_python(data, count, base_ms, limits)
        job = self._job
        source = _pointer(data)
        job[0], job[1], job[2], job[3] = ctypes.addressof(source), len(data), count, base_ms
        job[4], job[5], job[6], job[7] = limits.low_ms, limits.high_ms, limits.flags, ERRORS_MAX
        code = _native.penstock_walk(self._at)
        if code or job[_ERRORS]:
            return self._found(code)
        return WalkFinding(DONE, count, job[_MAX_TIMESTAMP])

    def _found(self, code: int) -> WalkFinding:
        job = self._job
        if code:
            return WalkFinding(code, job[_INDEX])
        end = _FIRST + 2 * min(job[_ERRORS], ERRORS_MAX)
        errors = tuple(_error(job[at], job[at + 1]) for at in range(_FIRST, end, 2))
        return WalkFinding(code, job[_INDEX], job[_MAX_TIMESTAMP], job[_ERRORS], errors)

    def lz4_frame(self, data: memoryview) -> PlainSize | None:
        """Return the decompressed size, or None unless the bytes are a single lz4 frame that Kafka
        can read: with independent blocks, and without a dictionary, empty blocks or trailing bytes.
        Does not check checksums.
        """
        if _native is None or not data:
            return lz4_frame_in_python(data)
        source, job = _pointer(data), self._job
        job[0], job[1] = ctypes.addressof(source), len(data)
        if _native.penstock_lz4_frame(self._at):
            return None
        return PlainSize(job[_BEFORE_BYTES], job[_MOST_BYTES])


def _pointer(data: memoryview) -> "ctypes.c_char | ctypes.Array[ctypes.c_char]":
    """Return an object that keeps the memory of `data` alive, and whose address is its
    first byte.
    """
    if data.readonly:
        return ctypes.create_string_buffer(bytes(data), len(data))
    return ctypes.c_char.from_buffer(data)


def _error(place: int, timestamp_ms: int) -> RecordFault:
    return RecordFault(place if place >= 0 else -place - 1, place < 0, timestamp_ms)


class _Bad(Exception):
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def walk_in_python(data: Buffer, count: int, base_ms: int, limits: Limits) -> WalkFinding:
    """Implements `Walker.walk`."""
    plain, at, newest, errors = bytes(data), 0, _NO_TIMESTAMP, list[RecordFault]()
    error_count = 0
    for index in range(count):
        try:
            at, has_key, delta_ms = _record(plain, at, index, count, limits.flags)
        except _Bad as bad:
            return WalkFinding(bad.code, index)
        except BatchCorrupt:
            return WalkFinding(BAD_NUMBER, index)
        timestamp_ms = max(_INT64_MIN, min(_INT64_MAX, base_ms + delta_ms))
        newest = max(newest, timestamp_ms)
        is_outside = not limits.flags & IGNORES_TIMES and (
            timestamp_ms != base_ms + delta_ms
            or (
                timestamp_ms != _NO_TIMESTAMP
                and not limits.low_ms <= timestamp_ms <= limits.high_ms
            )
        )
        is_keyless = bool(limits.flags & NEEDS_KEYS) and not has_key
        if is_outside or is_keyless:
            error_count += 1
            if len(errors) < ERRORS_MAX:
                errors.append(RecordFault(index, is_keyless, timestamp_ms))
    code = DONE if at == len(plain) else BAD_REST
    if code:
        return WalkFinding(code, count)
    return WalkFinding(code, count, newest, error_count, tuple(errors))


def _record(plain: bytes, at: int, index: int, count: int, flags: int) -> tuple[int, bool, int]:
    """Return the position after a record, whether it has a key, and its timestamp delta."""
    if at == len(plain):
        raise _Bad(BAD_COUNT)
    length, at = read_varint(plain, at, len(plain))
    if not 1 <= length <= len(plain) - at:
        raise _Bad(BAD_LENGTH)
    end = at + length
    delta_ms, at = read_varlong(plain, at + 1, end)
    delta, at = read_varint(plain, at, end)
    if not (delta == index if flags & SEQUENTIAL else 0 <= delta < count):
        raise _Bad(BAD_DELTA)
    key_length, at = _field(plain, at, end)
    _, at = _field(plain, at, end)
    header_count, at = read_varint(plain, at, end)
    if not 0 <= header_count <= (end - at) // 2:
        raise _Bad(BAD_HEADER_COUNT)
    for _ in range(header_count):
        name_length, at = _field(plain, at, end)
        if name_length < 0:
            raise _Bad(BAD_HEADER_NAME)
        _, at = _field(plain, at, end)
    if at != end:
        raise _Bad(BAD_END)
    return end, key_length >= 0, delta_ms


def _field(plain: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the declared length of a field, negative for null, and the position after the
    field.
    """
    length, at = read_varint(plain, at, end)
    if length > end - at:
        raise _Bad(BAD_FIELD)
    return length, at + max(length, 0)


def lz4_frame_in_python(data: Buffer) -> PlainSize | None:
    """Implements `Walker.lz4_frame`."""
    frame = bytes(data)
    if len(frame) < 7 or frame[:4] != b"\x04\x22\x4d\x18":
        return None
    flags, sizes = frame[4], frame[5]
    if flags & 0xE3 != 0x60 or sizes & 0x8F or sizes < 0x40:
        return None
    at = 15 if flags & 0x08 else 7
    behind_block, behind_frame = 4 * (flags >> 4 & 1), 4 * (flags >> 2 & 1)
    before = most = 0
    while len(frame) - at >= 4:
        word = int.from_bytes(frame[at : at + 4], "little")
        at += 4
        if not word:
            return PlainSize(before, most) if len(frame) - at == behind_frame else None
        length = word & 0x7FFFFFFF
        if not length:
            return None  # Java clients treat an empty block as the end of the frame
        at += length + behind_block
        before = most
        most += min(256 << (sizes >> 3), length if word >> 31 else _LZ4_RATIO_MAX * length)
    return None


def _load() -> ctypes.CDLL | None:
    """Return the native code for this platform, or None."""
    machine = platform.machine().lower().replace("amd64", "x86_64").replace("arm64", "aarch64")
    name = f"walk-{platform.system().lower()}-{machine}.so"
    try:
        library = ctypes.CDLL(str(Path(__file__).parent / "native" / name))
    except OSError:
        return None
    for function in (library.penstock_walk, library.penstock_lz4_frame):
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int64
    return library


_native: Final = _load()
IS_NATIVE: Final = _native is not None
