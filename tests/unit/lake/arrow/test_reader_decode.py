"""Decode batches to Arrow: every codec and encoder, both decoders, skipped and rejected records."""

import struct
import subprocess
import sys
from pathlib import Path

import aiokafka.codec
import cramjam
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.lake.arrow.columns import DEFAULT, arrow_schema
from penstock.lake.arrow.decode import Aborted, Decoder, Place
from penstock.lake.arrow.decode_table import FAR_FUTURE_MS, FAR_PAST_MS
from penstock.lake.fetch.errors import ReadError
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.times import TimeBounds
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.header import (
    CONTROL_MASK,
    HEADER_BYTES,
    TRANSACTIONAL_MASK,
    patch_log_append_time,
)
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.batch.varint import append_varint
from penstock.stream.format.transaction_log import AbortedTransaction
from tests.support.reader_objects import ALL, decode, row_of, rows_of, sealed

NOW_MS = 1_700_000_000_000
RECORDS = [
    Record(10, NOW_MS, b"key", b"value" * 50, (("trace", b"\x00\x01"), ("none", None))),
    Record(11, NOW_MS + 500, None, b""),
    Record(15, NOW_MS - 1_000, b"", None, (("", b""),)),
    Record(16, -1, b"k" * 200, b"v" * 100_000),
]
CODECS = list(Compression)
BOTH = pytest.mark.parametrize("compiled", [True, False], ids=["numba", "numpy"])


def plain(first: int, count: int, **options: int) -> bytearray:
    records = [
        Record(first + i, NOW_MS + first + i, b"k%d" % (first + i), b"v" * (i % 50))
        for i in range(count)
    ]
    return encode_batch(records, base_offset=first, **options)


def test_the_schema_equals_that_of_spark() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    spark = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", ArrayType(header)),
        ]
    )
    assert to_arrow_schema(spark, timezone="UTC").equals(arrow_schema(ALL))
    assert to_arrow_schema(StructType(spark.fields[:-1]), timezone="UTC").equals(arrow_schema())
    assert decode(plain(0, 3), compiled=True).schema.equals(arrow_schema(ALL))


@BOTH
@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_the_penstock_encoder(codec: Compression, compiled: bool) -> None:
    data = encode_batch(RECORDS, base_offset=10, compression=codec) + encode_batch(
        [Record(17, 5, None, None)], base_offset=17
    )
    table = decode(bytes(data), compiled=compiled)
    assert rows_of(table) == [*map(row_of, RECORDS), (17, 5, None, None, ())]
    assert table["topic"].to_pylist() == ["topic"] * 5
    assert table["partition"].to_pylist() == [3] * 5
    assert table["timestampType"].to_pylist() == [0] * 5


@BOTH
@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_the_aiokafka_encoder(codec: Compression, compiled: bool) -> None:
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
    expected = [
        (i, 1_000 + i, b"k%d" % i if i % 3 else None, b"v" * i * 40, (("h", b"x"),))
        for i in range(50)
    ]
    assert rows_of(decode(bytes(builder.build()), compiled=compiled)) == expected


@BOTH
@pytest.mark.parametrize("xerial", [True, False])
def test_both_snappy_framings(xerial: bool, compiled: bool) -> None:
    batch = encode_batch([Record(i, 0, None, b"%d" % i * 30_000) for i in range(10)])
    packed = bytes(
        aiokafka.codec.snappy_encode(bytes(batch[HEADER_BYTES:]), xerial_compatible=xerial)
    )
    header = bytearray(batch[:HEADER_BYTES])
    header[22] = Compression.SNAPPY
    table = decode(sealed(header + packed), compiled=compiled)
    assert table["value"].to_pylist() == [b"%d" % i * 30_000 for i in range(10)]


@BOTH
def test_the_append_time_applies_to_every_record(compiled: bool) -> None:
    batch = bytearray(plain(0, 4))
    patch_log_append_time(batch, 0, NOW_MS + 99)
    table = decode(bytes(batch), compiled=compiled)
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [(NOW_MS + 99) * 1000] * 4
    assert table["timestampType"].to_pylist() == [1] * 4


@BOTH
@pytest.mark.parametrize(
    "columns",
    [("value",), ("offset", "timestamp"), ("topic",), ("partition",), ("headers", "key"), DEFAULT],
)
def test_only_requested_columns_are_returned_in_their_order(
    columns: tuple[str, ...], compiled: bool
) -> None:
    data = bytes(encode_batch(RECORDS, base_offset=10))
    table = decode(data, compiled=compiled, columns=columns)
    assert table.schema.equals(arrow_schema(columns))
    assert table.equals(decode(data, compiled=compiled).select(list(columns)))


@pytest.mark.parametrize("columns", [(), ("valu",), ("key", "key")])
def test_unknown_columns_are_rejected(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="choose at least one"):
        Decoder(columns)


@BOTH
def test_arrow_batches_keep_their_limits(compiled: bool) -> None:
    data = b"".join(bytes(plain(first, 100)) for first in range(0, 5_000, 100))
    decoder = Decoder(ALL, ReadConfig(rows_max=170), compiled=compiled)
    batches = [*decoder.decode(data, Place("x", "t", 0)), *decoder.flush()]
    assert [batch.num_rows for batch in batches] == [170] * 29 + [70]
    decoder = Decoder(ALL, ReadConfig(batch_bytes_max=4_000), compiled=compiled)
    batches = [*decoder.decode(data, Place("x", "t", 0)), *decoder.flush()]
    assert sum(batch.num_rows for batch in batches) == 5_000
    assert max(batch.nbytes for batch in batches) <= 4_100, (
        "validity bits and last offsets are not counted"
    )
    assert min(batch.num_rows for batch in batches[:-1]) > 20


@BOTH
def test_a_record_larger_than_an_arrow_batch_gets_its_own_batch(compiled: bool) -> None:
    records = [
        Record(0, 0, None, b"small"),
        Record(1, 0, None, b"x" * (5 << 20)),
        Record(2, 0, b"y" * 70_000, b"small"),
    ]
    decoder = Decoder(ALL, compiled=compiled)
    batches = [*decoder.decode(bytes(encode_batch(records)), Place("x", "t", 0)), *decoder.flush()]
    assert [batch.num_rows for batch in batches] == [1, 1, 1]
    assert [batch["value"][0].as_py() for batch in batches] == [record.value for record in records]


@BOTH
def test_blocks_of_several_partitions_share_arrow_batches(compiled: bool) -> None:
    decoder = Decoder(("topic", "partition", "offset"), compiled=compiled)
    for number in range(12):
        assert (
            list(decoder.decode(bytes(plain(0, 2)), Place("x", f"topic-{number // 2}", number)))
            == []
        )
    (batch,) = decoder.flush()
    assert batch["topic"].to_pylist() == [
        f"topic-{number // 2}" for number in range(12) for _ in range(2)
    ]
    assert batch["partition"].to_pylist() == [number for number in range(12) for _ in range(2)]
    assert list(decoder.flush()) == []


@BOTH
def test_control_batches_are_skipped(compiled: bool) -> None:
    marker = encode_batch(
        [Record(5, 0, b"\0\0\0\1", b"\0" * 6)],
        base_offset=5,
        attributes=CONTROL_MASK | TRANSACTIONAL_MASK,
    )
    data = bytes(plain(0, 5) + marker + plain(6, 2))
    assert decode(data, compiled=compiled)["offset"].to_pylist() == [0, 1, 2, 3, 4, 6, 7]


@BOTH
def test_aborted_transactions_are_skipped(compiled: bool) -> None:
    def batch(first: int, producer_id: int, attributes: int = TRANSACTIONAL_MASK) -> bytearray:
        return plain(
            first,
            2,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            attributes=attributes,
        )

    data = bytes(
        batch(0, 7) + batch(2, 8) + batch(4, 7) + batch(6, 7, 0) + batch(8, 7) + batch(10, 7)
    )
    aborted = [
        AbortedTransaction(7, 8, 9),
        AbortedTransaction(7, 3, 7),
        AbortedTransaction(9, 0, 100),
    ]
    assert decode(data, compiled=compiled, aborted=aborted)["offset"].to_pylist() == [
        0,
        1,
        2,
        3,
        6,
        7,
        10,
        11,
    ]
    assert decode(data, compiled=compiled)["offset"].to_pylist() == list(range(12))


@BOTH
def test_old_batches_are_pruned_by_their_max_timestamp(compiled: bool) -> None:
    decoder = Decoder(("offset",), compiled=compiled)
    data = bytes(plain(0, 10) + plain(10, 10) + plain(20, 10))
    assert list(decoder.decode(data, Place("x", "t", 0), times=TimeBounds(NOW_MS + 15))) == []
    assert next(decoder.flush())["offset"].to_pylist() == list(range(10, 30))


@BOTH
def test_header_names_that_are_not_utf8_are_replaced(compiled: bool) -> None:
    batch = encode_batch(
        [Record(0, 0, None, None, (("name", b"x"), ("good", b"y"))), Record(1, 0, None, None)]
    )
    damaged = sealed(bytes(batch).replace(b"name", b"n\xffme"))
    assert rows_of(decode(damaged, compiled=compiled))[0][4] == (("n�me", b"x"), ("good", b"y"))


@BOTH
@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompression_bombs_stop_at_the_limit(codec: Compression, compiled: bool) -> None:
    zeros = b"\x00" * (8 << 20)
    data = bytes(encode_batch([Record(0, 0, None, zeros)], compression=codec))
    table = decode(data, compiled=compiled, uncompressed_batch_bytes_max=9 << 20)
    assert table["value"].to_pylist() == [zeros]
    with pytest.raises(ReadError, match=r"data/x, topic-3 at offset 0: .*(more than|declares)"):
        decode(data, compiled=compiled, uncompressed_batch_bytes_max=8 << 20)


def record(body: bytes) -> bytes:
    out = bytearray()
    append_varint(out, len(body))
    return bytes(out) + body


def batch_of(payload: bytes, *, count: int = 1, last_delta: int = 0) -> bytes:
    header = bytearray(encode_batch([Record(40, 0, None, None)], base_offset=40)[:HEADER_BYTES])
    struct.pack_into(">i", header, 23, last_delta)
    struct.pack_into(">i", header, 57, count)
    return sealed(header + payload)


def compressed_as(codec: int, payload: bytes, **counts: int) -> bytes:
    batch = bytearray(batch_of(payload, **counts))
    batch[22] |= codec
    return sealed(batch)


SOUND = record(bytes([0, 0, 0, 1, 1, 0]))
MALFORMED = {
    "count too high": (batch_of(SOUND, count=2), "more records"),
    "count negative": (batch_of(SOUND, count=-1), "negative count"),
    "count too low": (batch_of(SOUND, count=0), "remain after"),
    "length over the end": (batch_of(b"\x7e" + SOUND[1:]), "record's length"),
    "length negative": (batch_of(b"\x01" + SOUND[1:]), "record's length"),
    "length without end": (batch_of(b"\xff" * 20), "too many bits"),
    "varint of 33 bits": (batch_of(b"\xff\xff\xff\xff\x1f" + SOUND), "too many bits"),
    "varlong of 65 bits": (
        batch_of(record(bytes([0]) + b"\xff" * 9 + b"\x02" + bytes([0, 1, 1, 0]))),
        "too many bits",
    ),
    "key over the end": (
        batch_of(record(bytes([0, 0, 0, 20, 1, 0]))),
        "exceeds the end of its record",
    ),
    "value over the end": (
        batch_of(record(bytes([0, 0, 0, 1, 20, 0]))),
        "exceeds the end of its record",
    ),
    "too many headers": (batch_of(record(bytes([0, 0, 0, 1, 1, 20]))), "more headers"),
    "negative headers": (batch_of(record(bytes([0, 0, 0, 1, 1, 1]))), "more headers"),
    "header name null": (batch_of(record(bytes([0, 0, 0, 1, 1, 2, 1, 1]))), "header is null"),
    "header over the end": (
        batch_of(record(bytes([0, 0, 0, 1, 1, 2, 0, 8]))),
        "exceeds the end of its record",
    ),
    "bytes after the value": (
        batch_of(record(bytes([0, 0, 0, 1, 1, 0, 0]))),
        "where its length says",
    ),
    "delta beyond the last": (batch_of(record(bytes([0, 0, 2, 1, 1, 0]))), "beyond the batch's"),
    "unknown codec": (compressed_as(5, SOUND), "compression 5 is unknown"),
    "not gzip": (compressed_as(1, SOUND), "cannot be decompressed"),
    "framed snappy": (
        compressed_as(2, bytes(cramjam.snappy.compress(SOUND))),
        "a snappy block of",
    ),
    "bytes after a frame": (
        compressed_as(3, bytes(cramjam.lz4.compress(SOUND)) + b"x"),
        "cannot be decompressed",
    ),
    "no records": (batch_of(b"", count=1), "more records"),
}


@BOTH
@pytest.mark.parametrize("name", MALFORMED)
def test_errors_of_malformed_records_contain_their_place(name: str, compiled: bool) -> None:
    data, what = MALFORMED[name]
    assert rows_of(decode(batch_of(SOUND), compiled=compiled)) == [(40, 0, None, None, ())]
    with pytest.raises(ReadError, match=f"object data/x, topic-3 at offset 40: .*{what}"):
        decode(data, compiled=compiled)


@BOTH
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records_can_be_skipped(name: str, compiled: bool) -> None:
    data, what = MALFORMED[name]
    lost: list[ReadError] = []
    found = decode(
        bytes(plain(37, 3)) + data + bytes(plain(46, 2)),
        compiled=compiled,
        on_unreadable=lost.append,
    )
    offsets = found["offset"].to_pylist()
    assert [offset for offset in offsets if offset != 40] == [37, 38, 39, 46, 47]
    (error,) = lost
    assert (error.topic, error.partition, error.offset, error.end_offset) == ("topic", 3, 40, 41)
    assert what in error.what
    assert (40 in offsets) == (name == "count too high"), "the record that is there is returned"


def of_delta(delta: int, headers: bytes = b"\0", value: bytes = b"\1") -> bytes:
    return record(bytes([0, 0, 2 * delta, 1]) + value + headers)


NULL_NAME = b"\2\1\1"


@BOTH
@pytest.mark.parametrize("codec", [0, 1, 3, 4])
def test_records_around_a_malformed_one_are_returned(codec: int, compiled: bool) -> None:
    payload = (
        of_delta(0) + of_delta(2, NULL_NAME) + of_delta(3) + of_delta(5, NULL_NAME) + of_delta(7)
    )
    payload = payload if codec == 0 else compress(Compression(codec), payload)
    data = compressed_as(codec, payload, count=5, last_delta=9)
    for before in (b"", bytes(plain(0, 3))):
        lost: list[ReadError] = []
        found = decode(
            before + data + bytes(plain(50, 2)), compiled=compiled, on_unreadable=lost.append
        )
        assert found["offset"].to_pylist()[-5:] == [40, 43, 47, 50, 51]
        assert [(error.offset, error.end_offset) for error in lost] == [(42, 43), (45, 46)]
    # Only unreadable records that were requested are errors.
    place = Place("data/x", "topic", 3, low=43, high=45)
    assert decode(data, place, compiled=compiled)["offset"].to_pylist() == [43]
    with pytest.raises(ReadError, match="at offset 42: the key of a record header is null"):
        decode(data, Place("data/x", "topic", 3, low=41), compiled=compiled)


@BOTH
def test_the_rest_of_a_batch_after_an_invalid_length_is_skipped(compiled: bool) -> None:
    lost: list[ReadError] = []
    cut = batch_of(of_delta(0) + of_delta(1)[:-2], count=4, last_delta=3)
    found = decode(cut + bytes(plain(44, 1)), compiled=compiled, on_unreadable=lost.append)
    assert found["offset"].to_pylist() == [40, 44]
    assert [(error.offset, error.end_offset) for error in lost] == [(41, 44)]
    assert "at offsets 41 to 43: a record's length exceeds" in str(lost[0])


@BOTH
def test_damaged_batches_of_a_block_can_be_skipped(compiled: bool) -> None:
    first, second, third = (bytes(plain(at, 3)) for at in (0, 3, 6))
    for at, offsets, place in (
        (70, [0, 1, 2, 6, 7, 8], (3, 6)),  # the checksum
        (16, [0, 1, 2], (3, 9)),  # the format: the next batch cannot be found
    ):
        damaged = bytearray(second)
        damaged[at] ^= 0x80
        lost: list[ReadError] = []
        found = decode(
            first + bytes(damaged) + third,
            Place("data/x", "topic", 3, end_offset=9, high=9),
            compiled=compiled,
            on_unreadable=lost.append,
        )
        assert found["offset"].to_pylist() == offsets
        assert [(error.offset, error.end_offset) for error in lost] == [place]


@BOTH
def test_the_first_of_several_records_with_the_same_offset_is_returned(compiled: bool) -> None:
    """Kafka's brokers accept such batches, and its consumers return the first record, too."""
    deltas = [0, 0, 3, 1, 3, 4, 4]
    values = [of_delta(delta, value=bytes([2, 65 + at])) for at, delta in enumerate(deltas)]
    data = batch_of(b"".join(values), count=7, last_delta=6) * 1 + bytes(plain(47, 1))
    found = decode(data, compiled=compiled, columns=("offset", "value"))
    assert found["offset"].to_pylist() == [40, 43, 44, 47]
    assert found["value"].to_pylist()[:3] == [b"A", b"C", b"F"]
    with_bad = batch_of(
        b"".join(values[:3]) + of_delta(4, NULL_NAME) + values[1] + of_delta(5),
        count=6,
        last_delta=6,
    )
    lost: list[ReadError] = []
    found = decode(with_bad, compiled=compiled, on_unreadable=lost.append)
    assert found["offset"].to_pylist() == [40, 43, 45]
    assert [error.offset for error in lost] == [44]


@BOTH
@pytest.mark.parametrize(
    ("timestamp_ms", "shown_ms"),
    [
        (1_700_000_000_000_000_000, FAR_FUTURE_MS),  # nanoseconds
        (1_700_000_000_000_000, 1_700_000_000_000_000),  # microseconds
        ((1 << 63) - 1, FAR_FUTURE_MS),
        (-(1 << 63), FAR_PAST_MS),
        (-5, -5),
    ],
)
def test_timestamps_out_of_arrows_range_are_clamped(
    timestamp_ms: int, shown_ms: int, compiled: bool
) -> None:
    records = [Record(0, timestamp_ms, None, b"v"), Record(1, timestamp_ms, None, b"w")]
    data = bytes(encode_batch(records))
    found = decode(data, compiled=compiled)["timestamp"].cast(pa.int64()).to_pylist()
    assert found == [shown_ms * 1_000] * 2
    stamped = bytearray(data)
    patch_log_append_time(stamped, 0, timestamp_ms)
    found = decode(bytes(stamped), compiled=compiled)["timestamp"].cast(pa.int64()).to_pylist()
    assert found == [shown_ms * 1_000] * 2


@BOTH
@pytest.mark.parametrize("newest_ms", [-1, 0, NOW_MS - 3_600_000])
def test_batches_with_a_wrong_maximum_timestamp_are_searched(
    newest_ms: int, compiled: bool
) -> None:
    """sarama 1.43 writes -1."""
    batch = bytearray(
        encode_batch([Record(0, NOW_MS, None, b"v"), Record(1, NOW_MS + 9, None, b"w")])
    )
    struct.pack_into(">q", batch, 35, newest_ms)
    times = TimeBounds(NOW_MS + 1)
    decoder = Decoder(("offset", "timestamp"), compiled=compiled)
    place = Place("x", "t", 0)
    assert list(decoder.decode(sealed(batch), place, times=times)) == []
    assert next(decoder.flush())["offset"].to_pylist() == [0, 1]
    counter = Decoder(("timestamp",), compiled=compiled)
    assert counter.count(sealed(batch), place, Aborted(), times) == 1
    one = bytearray(encode_batch([Record(0, NOW_MS, None, b"v")]))
    struct.pack_into(">q", one, 35, newest_ms)
    for bounds, expected in ((times, 0), (TimeBounds(NOW_MS), 1), (TimeBounds(0, NOW_MS - 1), 0)):
        assert counter.count(sealed(one), place, Aborted(), bounds) == expected


@BOTH
def test_damage_in_headers_and_checksums(compiled: bool) -> None:
    data = bytes(plain(0, 3) + plain(3, 3))
    second = len(data) // 2
    for at, what in (
        (second + 70, "checksum"),
        (second + 16, "format 2"),
        (second + 8, "length"),
        (second, "offsets"),
    ):
        damaged = bytearray(data)
        damaged[at] ^= 0x80
        with pytest.raises(ReadError, match=what):
            decode(bytes(damaged), compiled=compiled)
    for what, block in (
        ("format 2", data[:-150]),
        ("length", data[:-1]),
        ("format 2", data + b"x"),
    ):
        with pytest.raises(ReadError, match=what):
            decode(block, compiled=compiled)
    with pytest.raises(ReadError, match="outside its block"):
        decode(data, Place("data/x", "topic", 3, start_offset=1), compiled=compiled)
    with pytest.raises(ReadError, match="outside its block"):
        decode(data, Place("data/x", "topic", 3, end_offset=5), compiled=compiled)


def run(code: str, **environment: str) -> str:
    """Run the code in a fresh interpreter of this checkout; return its output."""
    root = str(Path(__file__).resolve().parents[4])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_planners_and_brokers_import_neither_pyarrow_nor_numba() -> None:
    run(
        "import sys\n"
        "for blocked in ('pyarrow', 'numba', 'pyspark'): sys.modules[blocked] = None\n"
        "from penstock.lake.fetch import errors, limits, parts, slices\n"
        "import penstock.stream.read.object_reader"
    )


def test_the_numpy_decoder_is_used_without_numba() -> None:
    code = (
        "import importlib.util as u, penstock.lake.arrow.decode as d\n"
        "from penstock.lake.fetch.limits import ReadConfig\n"
        "d.find_spec = lambda name: None\n"
        "import sys; sys.modules['numba'] = None\n"
        "print(type(d.open_rows(d.DEFAULT, ReadConfig())).__name__)"
    )
    assert run(code) == "NumpyRows"


def test_compiled_kernels_are_cached_in_the_directory_of_numba(tmp_path: Path) -> None:
    """If no directory is writable, they are compiled only for this process."""
    code = (
        "from penstock.lake.arrow import kernel_cache"
        "; print(kernel_cache.cache_directory() is not None)"
    )
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path), HOME="/nonexistent") == "True"
    assert [path.name.startswith("penstock-") for path in tmp_path.iterdir()] == [True]
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    assert run(code, NUMBA_CACHE_DIR=str(blocked)) == "False"
    assert run(code, HOME=str(blocked), TMPDIR=str(shared)) == "True"
