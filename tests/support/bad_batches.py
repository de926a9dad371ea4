"""Batches with unreadable records, and a way to store them as producers could before records were
validated.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import cramjam

from penstock.protocol import apis
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.batch.varint import append_varint
from penstock.protocol.gen import produce
from tests.support.reader_objects import sealed
from tests.support.wire import wire_client

UNCHECKED = {"record.validation": "header"}
"""Configs of topics that accept such batches."""

NOW_MS = 1_700_000_000_000
NULL_NAME = b"\x02\x01\x01"
"""The headers of a record: one header with neither key nor value."""


class Stored(NamedTuple):
    """A batch of 3 offsets. readable: the offset deltas of its readable records."""

    data: bytes
    readable: tuple[int, ...]
    what: str


def record(
    delta: int,
    headers: bytes = b"\x00",
    value: bytes = b'{"a": 1}',
    delta_ms: int = 0,
    key: bytes = b"\x01",
) -> bytes:
    body = bytearray(b"\x00")
    append_varint(body, delta_ms)
    append_varint(body, delta)
    body += key
    append_varint(body, len(value))
    body += value + headers
    out = bytearray()
    append_varint(out, len(body))
    return bytes(out + body)


def batch_of(payload: bytes, codec: int = 0, *, count: int = 3) -> bytes:
    """Return a batch of `count` records at offset 0, as a producer sends it."""
    header = bytearray(encode_batch([Record(0, NOW_MS, None, None)])[:HEADER_BYTES])
    struct.pack_into(">i", header, 23, count - 1)
    struct.pack_into(">i", header, 57, count)
    header[22] |= codec
    return sealed(header + payload)


def good(value: bytes = b'{"a": 1}', count: int = 3) -> bytes:
    return batch_of(b"".join(record(delta, value=value) for delta in range(count)), count=count)


_SOUND = record(0) + record(1) + record(2)
_AROUND = record(0) + record(1, NULL_NAME) + record(2)
_GARBAGE = b"\xff" * 30
BAD = {
    "null header key": Stored(batch_of(_AROUND), (0, 2), "the key of a record header is null"),
    "null header key in lz4": Stored(
        batch_of(compress(Compression.LZ4, _AROUND), 3),
        (0, 2),
        "the key of a record header is null",
    ),
    "fewer records": Stored(
        batch_of(record(0) + record(1, value=b'{"a": 1, "b": "more than this"}')),
        (0, 1),
        "more records",
    ),
    "more records": Stored(batch_of(_SOUND + record(3)), (0, 1, 2), "bytes remain after"),
    "garbage": Stored(batch_of(_GARBAGE), (), "too many bits"),
    "a truncated record": Stored(batch_of(_SOUND[:-3]), (0, 1), "exceeds the end"),
    "framed snappy": Stored(batch_of(bytes(cramjam.snappy.compress(_SOUND)), 2), (), "snappy"),
    "not zstd": Stored(batch_of(_SOUND, 4), (), "cannot be decompressed"),
    "an offset beyond the last": Stored(
        batch_of(record(0) + record(1) + record(9)), (0, 1), "beyond the batch's last offset"
    ),
}
"""The errors that readers report, or the records that they skip."""

ODD = {
    "two lz4 frames": (0, 1, 2),
    "linked lz4 blocks": (0, 1, 2),
    "repeated offsets": (0, 2),
    "nanoseconds": (0, 1, 2),
    "negative timestamps": (0, 1, 2),
    "header key that is not UTF-8": (0, 1, 2),
    "key of length -2": (0, 1, 2),
    "header value of length -2": (0, 1, 2),
    "max timestamp -1": (0, 1, 2),
}
"""The offset deltas of the records that readers return."""


def odd(name: str) -> bytes:
    if name == "two lz4 frames":
        frames = (compress(Compression.LZ4, part) for part in (record(0), record(1) + record(2)))
        return batch_of(b"".join(frames), 3)
    if name == "linked lz4 blocks":
        return batch_of(bytes(cramjam.lz4.compress(_SOUND)), 3)
    if name == "repeated offsets":
        return batch_of(record(0) + record(0, value=b'{"a": 2}') + record(2))
    if name == "header key that is not UTF-8":
        return batch_of(record(0, b"\x02\x04\xff\xfe\x01") + record(1) + record(2))
    if name == "key of length -2":
        return batch_of(record(0) + record(1, key=b"\x03") + record(2))
    if name == "header value of length -2":
        return batch_of(record(0) + record(1, b"\x02\x02a\x03") + record(2))
    batch = bytearray(batch_of(_SOUND))
    if name == "max timestamp -1":
        struct.pack_into(">q", batch, 35, -1)
        return sealed(batch)
    delta_ms = NOW_MS * 999_999 if name == "nanoseconds" else -(1 << 62)
    return batch_of(b"".join(record(delta, delta_ms=delta_ms) for delta in range(3)))


def store(
    bootstrap: str,
    topic: str,
    batches: Sequence[bytes],
    partition: int = 0,
    transactional_id: str | None = None,
) -> None:
    """Append batches to a partition as a producer does. The broker must be the partition leader."""
    client = wire_client(bootstrap)
    try:
        for batch in batches:
            data = [produce.PartitionProduceData(partition, batch)]
            request = produce.ProduceRequest(
                transactional_id,
                -1,
                30_000,
                [produce.TopicProduceData(name=topic, partition_data=data)],
            )
            response = client.send_request(
                apis.PRODUCE, request, produce.ProduceResponse, version=9
            )
            (part,) = response.responses[0].partition_responses
            assert not part.error_code, (part.error_code, part.error_message)
    finally:
        client.close()
