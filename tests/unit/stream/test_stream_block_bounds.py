"""Block metadata in the index besides positions: timestamp bounds and uncompressed size."""

import random

import aiokafka.codec
import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.protocol.batch.compression import Compression, Inflater, compress
from penstock.protocol.batch.header import (
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_BYTES,
    OLDEST_UNKNOWN,
    may_be_as_young,
    merged_newest,
    parse_header,
    patch_log_append_time,
)
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.batch.uncompressed_size import (
    UNCOMPRESSED_UNKNOWN,
    uncompressed_bytes,
    zstd_size,
)
from penstock.protocol.batch.walk import Walker, lz4_frame_in_python
from penstock.stream.cleaning.batches import fillers
from penstock.stream.format.block_walk import Piece, entry_of
from penstock.stream.format.builder import RunEntry, StreamRun, build_object
from penstock.stream.format.decoder import verify_object
from penstock.stream.format.layout import NO_SEQUENCE, BlockEntry
from penstock.stream.ports import BrokerIncarnation, ObjectRange, ObjectRole

PLAIN = b"".join(b"record %d, " % number for number in range(20_000))
STREAM = StreamId(7)


def batch_of(*timestamps_ms: int, base_offset: int = 0) -> bytearray:
    records = [
        Record(base_offset + at, timestamp_ms, None, b"value")
        for at, timestamp_ms in enumerate(timestamps_ms)
    ]
    return encode_batch(records, base_offset=base_offset)


def object_of(*batches: bytes | bytearray, block_bytes_max: int = 1 << 20) -> bytes:
    entries = [RunEntry.of_batch(batch, parse_header(batch)) for batch in batches]
    writer = BrokerIncarnation(NodeId(1), NodeEpoch(1))
    built = build_object(
        ObjectRole.STREAM,
        writer,
        WalSequence(NO_SEQUENCE),
        Millis(0),
        [StreamRun(STREAM, entries)],
        block_bytes_max=block_bytes_max,
    )
    return b"".join(built.chunks)


def block_of(*batches: bytes | bytearray) -> BlockEntry:
    (block,) = verify_object(object_of(*batches)).blocks()
    return block


def bounds_of(*batches: bytes | bytearray) -> tuple[int, int]:
    block = block_of(*batches)
    return block.min_timestamp_ms, block.max_timestamp_ms


def test_a_single_record_determines_the_bounds_of_its_batch() -> None:
    assert bounds_of(batch_of(500)) == (500, 500)
    assert bounds_of(batch_of(-1)) == (-1, -1)


def test_a_batch_of_several_records_has_no_lower_bound() -> None:
    batch = batch_of(500, 200, 700)
    assert parse_header(batch).base_timestamp_ms == 500
    assert bounds_of(batch) == (OLDEST_UNKNOWN, 700)
    # Equal base and max timestamps do not prove a bound either.
    assert bounds_of(batch_of(700, 200)) == (OLDEST_UNKNOWN, 700)


def test_the_append_time_is_a_bound_for_any_number_of_records() -> None:
    batch = batch_of(500, 200, 700)
    patch_log_append_time(batch, 0, 9_000)
    assert bounds_of(batch) == (9_000, 9_000)
    assert {record.timestamp_ms for record in decode_records(batch)} == {9_000}


def test_a_delete_horizon_is_not_a_bound() -> None:
    batch = batch_of(500)
    header = parse_header(batch)
    header = header._replace(
        attributes=header.attributes | DELETE_HORIZON_MASK, base_timestamp_ms=90_000
    )
    HEADER.pack_into(batch, 0, *header)
    assert header.delete_horizon_ms == 90_000
    assert header.min_timestamp_ms == 500


def test_one_batch_without_a_bound_leaves_its_block_without_one() -> None:
    old, young = batch_of(300), batch_of(800, base_offset=1)
    assert bounds_of(old, young) == (300, 800)
    mixed = batch_of(900, 100, base_offset=2)
    assert bounds_of(old, young, mixed) == (OLDEST_UNKNOWN, 900)


def test_batches_without_records_do_not_change_bounds() -> None:
    (_, gap), *_ = fillers(Offset(1), Offset(5), 0)
    assert bounds_of(gap) == (-1, -1)
    assert bounds_of(batch_of(300), gap) == (300, 300)
    assert bounds_of(batch_of(300), gap, batch_of(200, base_offset=5)) == (200, 300)


@pytest.mark.parametrize("block_bytes_max", [1, 1 << 20])
def test_an_unknown_maximum_timestamp_makes_that_of_its_block_and_range_unknown(
    block_bytes_max: int,
) -> None:
    """A WAL slot committed in place gets the range in its index."""
    batches = [batch_of(700), batch_of(-1, base_offset=1), batch_of(500, base_offset=2)]
    index = verify_object(object_of(*batches, block_bytes_max=block_bytes_max))
    (found,) = index.ranges
    assert found.max_timestamp_ms == ~700
    for record_count in (found.record_count, 0):  # 0: a fraction of the range
        assert may_be_as_young(found.max_timestamp_ms, record_count, 10_000)
    expected = [700, -1, 500] if block_bytes_max == 1 else [~700]
    assert [block.max_timestamp_ms for block in index.blocks()] == expected
    source = ObjectRange(ObjectId(1), "key", ObjectRole.STREAM, 1, found)
    for block in index.blocks():
        data = object_of(*batches, block_bytes_max=block_bytes_max)
        data = data[block.position : block.position + block.size_bytes]
        assert entry_of(Piece(source, block), data).max_timestamp_ms == block.max_timestamp_ms


def test_batches_without_records_do_not_make_the_maximum_timestamp_unknown() -> None:
    (_, gap), *_ = fillers(Offset(1), Offset(5), 0)
    assert bounds_of(batch_of(300), gap) == (300, 300)
    assert merged_newest([(-1, 0), (300, 1)]) == 300
    assert merged_newest([(~900, 2), (300, 1)]) == ~900
    assert merged_newest([(~100, 2), (300, 1)]) == ~300
    assert merged_newest([]) == -1


def test_each_block_has_its_own_bounds() -> None:
    batches = [batch_of(700), batch_of(300, 1, base_offset=1), batch_of(500, base_offset=3)]
    blocks = verify_object(object_of(*batches, block_bytes_max=1)).blocks()
    assert [block.min_timestamp_ms for block in blocks] == [700, OLDEST_UNKNOWN, 500]
    assert [block.uncompressed_bytes for block in blocks] == [len(batch) for batch in batches]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(-1, 1 << 41), min_size=1, max_size=4), st.booleans()),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_no_record_is_outside_the_bounds(
    groups: list[tuple[list[int], bool]], data: st.DataObject
) -> None:
    batches: list[bytearray] = []
    base = 0
    for timestamps_ms, is_append_time in groups:
        batches.append(batch_of(*timestamps_ms, base_offset=base))
        if is_append_time:
            patch_log_append_time(batches[-1], 0, data.draw(st.integers(0, 1 << 41)))
        base += len(timestamps_ms)
    low, high = bounds_of(*batches)
    found = [record.timestamp_ms for batch in batches for record in decode_records(batch)]
    assert low <= min(found)
    assert low in {min(found), OLDEST_UNKNOWN}
    if high >= 0:
        assert max(found) <= high
    else:
        assert -1 in found, "unknown, although every batch has a newest timestamp"
        assert ~high <= max(*found, 0), "newer than every record"


def test_a_rewrite_keeps_the_metadata_of_its_range() -> None:
    batches = [batch_of(700), batch_of(300, 1, base_offset=1), batch_of(500, base_offset=3)]
    data = object_of(*batches)
    index = verify_object(data)
    (block,), (whole,) = index.blocks(), index.ranges
    payload = data[block.position : block.position + block.size_bytes]

    def taken(start: int, end: int) -> tuple[int, int, int, int]:
        part = whole.__class__(STREAM, Offset(start), Offset(end), 0, 0, Millis(0))
        source = ObjectRange(1, "data/x", ObjectRole.STREAM, len(data), part)  # type: ignore[arg-type]
        entry = entry_of(Piece(source, block), payload)
        return (
            entry.min_timestamp_ms,
            entry.max_timestamp_ms,
            entry.record_count,
            entry.uncompressed_bytes,
        )

    assert taken(0, 4) == (OLDEST_UNKNOWN, 700, 4, len(payload))
    assert taken(0, 1) == (700, 700, 1, len(batches[0]))
    assert taken(3, 4) == (500, 500, 1, len(batches[2]))


def zstd_streamed(data: bytes) -> bytes:
    """Compress as clients do that start before the size is known."""
    stream = cramjam.zstd.Compressor()
    stream.compress(data)
    return bytes(stream.finish())


def lz4_with_size(data: bytes) -> bytes:
    return bytes.fromhex("04224d186840") + len(data).to_bytes(8, "little") + b"\x00" + data


@pytest.mark.parametrize(
    ("codec", "packed", "is_declared"),
    [
        (Compression.NONE, PLAIN, True),
        (Compression.GZIP, bytes(cramjam.gzip.compress(PLAIN)), True),
        (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(PLAIN)), True),
        (Compression.SNAPPY, aiokafka.codec.snappy_encode(PLAIN, xerial_compatible=True), True),
        (Compression.LZ4, lz4_with_size(PLAIN), True),
        (Compression.LZ4, bytes(cramjam.lz4.compress(PLAIN)), False),
        (Compression.ZSTD, bytes(cramjam.zstd.compress(PLAIN)), True),
        (Compression.ZSTD, zstd_streamed(PLAIN), False),
        (5, PLAIN, False),
    ],
)
def test_the_declared_size_of_compressed_data_is_read(
    codec: int, packed: bytes, is_declared: bool
) -> None:
    expected = HEADER_BYTES + len(PLAIN) if is_declared else UNCOMPRESSED_UNKNOWN
    assert uncompressed_bytes(codec, bytes(HEADER_BYTES) + packed) == expected


@pytest.mark.parametrize("size_bytes", [0, 255, 256, 65_791, 65_792, 1 << 20])
def test_every_width_of_the_zstd_content_size_is_read(size_bytes: int) -> None:
    packed = bytes(cramjam.zstd.compress(bytes(size_bytes)))
    declared = uncompressed_bytes(Compression.ZSTD, bytes(HEADER_BYTES) + packed)
    assert declared == HEADER_BYTES + size_bytes


def test_the_size_of_a_zstd_frame_with_window_and_dictionary_is_read() -> None:
    frame = bytes.fromhex("28b52ffd c3 58 01020304") + (70_000).to_bytes(8, "little")
    declared = uncompressed_bytes(Compression.ZSTD, bytes(HEADER_BYTES) + frame)
    assert declared == HEADER_BYTES + 70_000


@given(
    st.sampled_from(list(Compression)),
    st.sampled_from(
        [b"", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\x82SNAPPY\x00" + bytes(8), b"\x1f\x8b"]
    ),
    st.binary(max_size=60),
)
def test_hostile_bytes_do_not_declare_absurd_sizes(
    codec: Compression, magic: bytes, rest: bytes
) -> None:
    declared = uncompressed_bytes(codec, bytes(HEADER_BYTES) + magic + rest)
    assert 0 <= declared <= HEADER_BYTES + (1 << 31) - 1


def test_a_size_above_that_of_any_client_counts_as_unknown() -> None:
    frame = bytes.fromhex("28b52ffd c0 58") + (1 << 31).to_bytes(8, "little")
    assert uncompressed_bytes(Compression.ZSTD, bytes(HEADER_BYTES) + frame) == 0


def test_sizes_of_thousands_of_snappy_blocks_are_not_summed_up() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"x"))
    framed = len(block).to_bytes(4, "big") + block

    def declared(count: int) -> int:
        packed = b"\x82SNAPPY\x00" + bytes(8) + framed * count
        return uncompressed_bytes(Compression.SNAPPY, bytes(HEADER_BYTES) + packed)

    assert declared(1_024) == HEADER_BYTES + 1_024
    assert declared(1_025) == UNCOMPRESSED_UNKNOWN


def test_one_batch_of_unknown_size_leaves_its_block_without_one() -> None:
    known = batch_of(1)
    packed = encode_batch([Record(1, 1, None, PLAIN)], base_offset=1, compression=Compression.GZIP)
    unknown = encode_batch([Record(2, 1, None, PLAIN)], base_offset=2, compression=Compression.LZ4)
    plain = encode_batch([Record(1, 1, None, PLAIN)], base_offset=1)
    assert block_of(known, packed).uncompressed_bytes == len(known) + len(plain)
    assert block_of(known, packed, unknown).uncompressed_bytes == UNCOMPRESSED_UNKNOWN


PLAIN_SIZES = (0, 1, 1_000, (64 << 10) - 1, 64 << 10, (128 << 10) + 1, 300_000, 1_500_000)


@pytest.mark.parametrize("size_bytes", PLAIN_SIZES)
@pytest.mark.parametrize("kind", ["text", "zeros", "noise"])
def test_the_size_of_frames_without_a_content_size_comes_from_their_blocks(
    size_bytes: int, kind: str
) -> None:
    """Java producers write such frames."""
    noise = random.Random(size_bytes).randbytes(size_bytes)
    plain = {"text": PLAIN * 8, "zeros": bytes(size_bytes), "noise": noise}[kind][:size_bytes]
    stream = cramjam.zstd.Compressor()
    stream.compress(plain)
    zstd = memoryview(bytes(stream.finish()))
    lz4 = memoryview(bytearray(compress(Compression.LZ4, plain)))
    assert Walker().lz4_frame(lz4) == lz4_frame_in_python(lz4)
    for codec, frame, size, block_bytes in (
        (Compression.ZSTD, zstd, zstd_size(zstd), 128 << 10),
        (Compression.LZ4, lz4, Walker().lz4_frame(lz4), 64 << 10),
    ):
        assert size is not None
        inflater = Inflater()
        assert inflater.append(codec, frame, 0, size.most) == size_bytes
        assert len(inflater.output) <= max(size.most, 64 << 10), "it was decompressed once"
        assert size.most >= size_bytes
        assert size.least <= size_bytes + block_bytes
        assert size.most <= 2 * (size_bytes + block_bytes)


@given(st.binary(max_size=40), st.integers(0, 255))
def test_damaged_zstd_data_has_no_size_or_a_wrong_one(data: bytes, descriptor: int) -> None:
    frame = b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + data
    size = zstd_size(memoryview(frame))
    assert size is None or size.least <= size.most
