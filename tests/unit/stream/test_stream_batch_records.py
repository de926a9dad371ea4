"""Records: all codecs, other encoders, damage, and decompression bombs."""

import gzip
import struct
import zlib
from functools import partial
from random import Random

import aiokafka.codec
import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

from penstock.protocol.batch.compression import Compression, compress, decompress
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import CRC_AT, CRC_START, HEADER, HEADER_BYTES, parse_header
from penstock.protocol.batch.records import (
    Record,
    decode_records,
    encode_batch,
    first_record_at_or_after,
)

RECORDS = [
    Record(10, 1_700_000_000_000, b"key", b"value" * 50, (("trace", b"\x00\x01"), ("none", None))),
    Record(11, 1_700_000_000_500, None, b""),
    Record(15, 1_699_999_999_000, b"", None, (("", b""),)),
    Record(16, 1_700_000_001_000, b"k" * 200, b"v" * 100_000),
]
CODECS = list(Compression)


def resealed(header: tuple[int, ...], payload: bytes) -> bytearray:
    """Return a batch with these header fields and a correct length and CRC."""
    batch = bytearray(HEADER_BYTES) + payload
    fields = list(header)
    fields[1] = len(batch) - 12
    HEADER.pack_into(batch, 0, *fields)
    struct.pack_into(">I", batch, CRC_AT, crc32c(bytes(batch[CRC_START:])))
    return batch


@pytest.mark.parametrize("compression", CODECS)
def test_records_survive_a_round_trip(compression: Compression) -> None:
    batch = encode_batch(RECORDS, base_offset=10, compression=compression)
    assert parse_header(batch).compression == compression
    assert decode_records(batch) == RECORDS
    assert decode_records(memoryview(bytes(batch) + b"next batch")) == RECORDS


def test_a_compacted_batch_keeps_its_range() -> None:
    batch = encode_batch(RECORDS[1:2], base_offset=10, last_offset=16)
    assert (
        parse_header(batch).base_offset,
        parse_header(batch).next_offset,
        parse_header(batch).record_count,
    ) == (10, 17, 1)
    assert decode_records(batch) == RECORDS[1:2]
    empty = encode_batch([], base_offset=10, last_offset=16)
    assert decode_records(empty) == []


@pytest.mark.parametrize(
    "arguments",
    [{"base_offset": 11}, {"base_offset": 10, "last_offset": 12}, {"base_offset": -(1 << 31)}],
)
def test_offsets_that_do_not_fit_are_rejected(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="offset"):
        encode_batch(RECORDS, **arguments)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_other_encoders_are_decoded(codec: Compression) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for i in range(50):
        builder.append(
            i,
            timestamp=1_000 + i,
            key=b"k%d" % i if i % 3 else None,
            value=b"v" * i * 40,
            headers=[("h", b"x")],
        )
    records = decode_records(bytes(builder.build()))
    assert records == [
        Record(i, 1_000 + i, b"k%d" % i if i % 3 else None, b"v" * i * 40, (("h", b"x"),))
        for i in range(50)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_other_decoders_read_our_batches(codec: Compression) -> None:
    batch = DefaultRecordBatch(bytes(encode_batch(RECORDS, base_offset=10, compression=codec)))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in batch] == [
        (r.offset, r.timestamp_ms, r.key, r.value) for r in RECORDS
    ]


@pytest.mark.parametrize("xerial", [True, False])
def test_both_snappy_framings_are_decoded(xerial: bool) -> None:
    data = bytes(range(256)) * 1_000
    packed = bytes(aiokafka.codec.snappy_encode(data, xerial_compatible=xerial))
    assert decompress(Compression.SNAPPY, packed) == data
    with pytest.raises(BatchCorrupt):
        decompress(Compression.SNAPPY, packed[:-3])
    with pytest.raises(BatchCorrupt):
        decompress(Compression.SNAPPY, packed, bytes_max=len(data) - 1)


@pytest.mark.parametrize("compression", CODECS[1:])
def test_decompression_bombs_stop_at_the_limit(compression: Compression) -> None:
    zeros = b"\x00" * (8 << 20)
    batch = encode_batch([Record(0, 0, None, zeros)], compression=compression)
    assert decode_records(batch, decompressed_bytes_max=9 << 20)[0].value == zeros
    with pytest.raises(BatchCorrupt, match=r"more than|declares"):
        decode_records(batch, decompressed_bytes_max=8 << 20)


@pytest.mark.parametrize(
    "lie",
    [
        b"\xff\xff\xff\xff\x0f",  # raw snappy that declares a size of 4 GiB
        b"\xff\xff\xff\xff\xff\x0f",
        b"\x80\x80\x80\x80\x01\x00",  # 256 MiB in one byte
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x7f\xff\xff\xff\x00",
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x05\xff\xff\xff\xff\x0f",
    ],
)
def test_no_memory_is_allocated_for_declared_sizes(lie: bytes) -> None:
    with pytest.raises(BatchCorrupt):
        decompress(Compression.SNAPPY, lie)


@pytest.mark.parametrize("compression", CODECS[1:])
def test_arbitrary_bytes_are_rejected(compression: Compression) -> None:
    with pytest.raises(BatchCorrupt):
        decompress(compression, b"\xf3 hello, this is no compressed stream at all" * 4)


def test_an_unknown_codec_is_rejected() -> None:
    with pytest.raises(BatchCorrupt, match="compression 6"):
        decompress(6, b"x")


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_any_flipped_bit_after_the_crc_is_detected(compression: Compression) -> None:
    good = bytes(encode_batch(RECORDS[:3], base_offset=10, compression=compression))
    for bit in range(16 * 8, len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BatchCorrupt):
            decode_records(bad)
    for cut in range(len(good)):
        with pytest.raises(BatchCorrupt):
            decode_records(good[:cut])


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x00\x00\x01\x01",  # shorter than its fields
        b"\x00\x00\x00\x01\x01\x00\x00",  # longer
        b"\x00\x00\x00\x01\x7e\x00",  # value of 63 bytes
        b"\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f",  # two billion headers
        b"\x00\x00\x00\x01\x01\x02\x01\x00",  # header with a null key
        b"\x00\x00\x02\x01\x01\x00",  # offset delta beyond the last one
        # varlong of more than 64 bits
        b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x01\x01\x00",
        b"\x00\x00\xff\xff\xff\xff\x7f\x01\x01\x00",  # varint of more than 32 bits
    ],
)
def test_hostile_records_with_a_valid_crc_are_rejected(body: bytes) -> None:
    header = HEADER.unpack_from(encode_batch([Record(0, 1_000, None, None)]))
    payload = bytes([len(body) << 1]) + body
    with pytest.raises(BatchCorrupt):
        decode_records(resealed(header, payload + b"\x00" * (7 - len(payload))))


@pytest.mark.parametrize("count", [0, 2, 3, (1 << 31) - 1])
def test_a_wrong_record_count_is_rejected(count: int) -> None:
    good = encode_batch([Record(0, 1_000, b"k", b"some value")])
    header = list(HEADER.unpack_from(good))
    header[12] = count
    with pytest.raises(BatchCorrupt):
        decode_records(resealed(tuple(header), bytes(good[HEADER_BYTES:])))


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("compression", list(Compression))
def test_the_first_record_at_or_after_a_timestamp_is_found(
    compression: Compression, in_thread: bool
) -> None:
    batch = encode_batch(RECORDS, base_offset=10, compression=compression)
    first = partial(first_record_at_or_after, batch, in_thread=in_thread)
    assert first(0) == (10, 1_700_000_000_000)
    assert first(1_700_000_000_001) == (11, 1_700_000_000_500)
    assert first(1_700_000_000_501) == (16, 1_700_000_001_000)
    assert first(1_700_000_001_001) is None
    assert first(0, from_offset=12) == (15, 1_699_999_999_000)


def test_truncated_compressed_data_is_rejected() -> None:
    data = b"abc" * 10_000
    for compression, packed in (
        (Compression.GZIP, gzip.compress(data)),
        (Compression.LZ4, bytes(cramjam.lz4.compress(data))),
        (Compression.ZSTD, bytes(cramjam.zstd.compress(data))),
    ):
        assert decompress(compression, packed) == data
        with pytest.raises(BatchCorrupt):
            decompress(compression, packed[:-4])
    with pytest.raises(BatchCorrupt):
        decompress(Compression.GZIP, zlib.compress(data))


def test_lz4_frames_are_readable_by_java_clients() -> None:
    """Kafka's Java clients read version 1 with independent blocks of at most 4 MiB."""
    rng = Random(1)
    data = b"abc" * 50_000 + rng.randbytes(100_000)
    frame = compress(Compression.LZ4, data)
    assert frame[:7].hex() == "04224d18604082"
    at, sizes = 7, []
    while size_bytes := int.from_bytes(frame[at : at + 4], "little"):
        sizes.append(size_bytes >> 31)
        at += 4 + (size_bytes & 0x7FFFFFFF)
    assert at + 4 == len(frame)
    assert {0, 1} == set(sizes), "some blocks are compressed, random ones are not"
    assert decompress(Compression.LZ4, frame) == data
    assert decompress(Compression.LZ4, compress(Compression.LZ4, b"")) == b""
