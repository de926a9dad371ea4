"""Find the intact records of a damaged batch.

The length of a record determines where the next one begins, regardless of errors inside the record;
after an invalid length, no more records can be found. Each offset of the batch is returned at most
once. This takes 2 us per record, which is acceptable because such batches are rare.
"""

from typing import Final, NamedTuple

from penstock.base.buffers import Buffer
from penstock.protocol.batch.compression import DECOMPRESSED_BYTES_MAX, decompress
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import HEADER_BYTES, check_crc, parse_header
from penstock.protocol.batch.records import Record, decode_records, record_at
from penstock.protocol.batch.varint import read_varint, read_varlong

BAD_CHECKSUM: Final = "the batch does not match its checksum"
BAD_COUNT: Final = "the batch declares more records than its bytes can hold, or a negative count"
BAD_DELTA: Final = "the offset of a record is beyond the batch's last offset"
BAD_END: Final = "bytes remain after the batch's last record"
BAD_FIELD: Final = "a key, value or header exceeds the end of its record"
BAD_HEADER_COUNT: Final = "a record declares more headers than its bytes can hold"
BAD_HEADER_NAME: Final = "the key of a record header is null"
BAD_NUMBER: Final = "a number in a record has too many bits or runs over its end"
BAD_RECORD_END: Final = "a record does not end where its length says"
BAD_RECORD_LENGTH: Final = "a record's length exceeds the end of its batch"


class LostRecords(NamedTuple):
    """Offsets of a batch without readable records, relative to its base offset, and the reason."""

    start: int
    end: int
    what: str


class SoundRecords(NamedTuple):
    """data: `record_count` whole records, one after another."""

    data: bytes
    record_count: int
    lost: list[LostRecords]


def sound_records(data: bytes, record_count: int, last_delta: int, taken: int = 0) -> SoundRecords:
    """Return the readable records after the first `taken` ones. `data` is not compressed."""
    kept: list[bytes] = []
    lost: list[LostRecords] = []
    at, previous = 0, -1
    if record_count < 0:
        return SoundRecords(b"", 0, [LostRecords(0, last_delta + 1, BAD_COUNT)])
    for number in range(record_count):
        start, begin = at, _body(data, at)
        if isinstance(begin, str):
            lost.append(LostRecords(min(previous, last_delta - 1) + 1, last_delta + 1, begin))
            return SoundRecords(b"".join(kept), len(kept), lost)
        at, end = begin
        what, delta = _check(data, at, end)
        at = end
        if delta is None:
            delta = min(previous + 1, last_delta)
        elif delta > last_delta:
            what, delta = what or BAD_DELTA, last_delta
        elif not what and delta > previous and number >= taken:
            kept.append(data[start:end])
        if what:
            lost.append(LostRecords(max(delta, 0), max(delta, 0) + 1, what))
        previous = max(previous, delta)
    if at != len(data):
        lost.append(LostRecords(last_delta, last_delta + 1, BAD_END))
    return SoundRecords(b"".join(kept), len(kept), lost)


def decode_sound(
    batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> tuple[list[Record], list[LostRecords]]:
    """Return the readable records and the lost records of the batch at the start of `batch`. Raises
    BatchCorrupt for an unreadable header.
    """
    try:
        return decode_records(batch, decompressed_bytes_max=decompressed_bytes_max), []
    except BatchCorrupt as error:
        header, failed = parse_header(batch), str(error)
    everything = header.last_offset_delta + 1
    if not check_crc(batch):
        return [], [LostRecords(0, everything, BAD_CHECKSUM)]
    packed = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    try:
        plain = bytes(decompress(header.compression, packed, decompressed_bytes_max))
    except BatchCorrupt:
        return [], [LostRecords(0, everything, failed)]
    found = sound_records(plain, header.record_count, header.last_offset_delta)
    records: list[Record] = []
    at = 0
    while at < len(found.data):
        record, at = record_at(found.data, at, header)
        records.append(record)
    return records, found.lost


def _body(data: bytes, at: int) -> tuple[int, int] | str:
    """Return the position after the length of a record and the end of the record, or the reason why
    the length is invalid.
    """
    if at == len(data):
        return BAD_COUNT
    try:
        length, at = read_varint(data, at, len(data))
    except BatchCorrupt:
        return BAD_NUMBER
    return (at, at + length) if 0 <= length <= len(data) - at else BAD_RECORD_LENGTH


def _check(data: bytes, at: int, end: int) -> tuple[str, int | None]:
    """Return the reason why a record is invalid ("" if it is valid), and its offset delta if it is
    readable.
    """
    delta: int | None = None
    try:
        _, at = read_varlong(data, at + 1, end)
        delta, at = read_varint(data, at, end)
        for _ in ("key", "value"):
            _, at = _field(data, at, end)
        count, at = read_varint(data, at, end)
        if not 0 <= count <= (end - at) // 2:
            return BAD_HEADER_COUNT, delta
        for _ in range(count):
            length, at = _field(data, at, end)
            if length < 0:
                return BAD_HEADER_NAME, delta
            _, at = _field(data, at, end)
    except BatchCorrupt:
        return BAD_NUMBER, delta
    except ValueError:
        return BAD_FIELD, delta
    return ("" if at == end else BAD_RECORD_END), delta


def _field(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the length of a field, negative for null, and the position after it. Raises
    ValueError, BatchCorrupt.
    """
    length, at = read_varint(data, at, end)
    if length > end - at:
        raise ValueError(length)
    return length, at + max(length, 0)
