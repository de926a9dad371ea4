"""Objects: the reader returns what the writer built, any truncation and any flipped bit is
detected, and invalid lengths are rejected.
"""

import pickle
from collections.abc import Generator

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.stream.errors import FormatUnknown, NotContiguous, ObjectCorrupt
from penstock.stream.format import layout
from penstock.stream.format.builder import (
    STEP_BYTES,
    STEP_ENTRIES,
    BuiltObject,
    RunEntry,
    StreamRun,
    build_object,
    build_steps,
    fence_object,
)
from penstock.stream.format.decoder import (
    NeedMore,
    ObjectIndex,
    check_block,
    parse_header,
    parse_tail,
    verify_object,
)
from penstock.stream.format.layout import ENTRY, ENTRY_BYTES, FOOTER, FOOTER_BYTES, HEADER_BYTES
from penstock.stream.ports import BrokerIncarnation, ObjectRole, StreamRange
from tests.support.newer_formats import (
    OPTIONAL_AT,
    REQUIRED_AT,
    VERSION_AT,
    with_header_field,
)

WRITER = BrokerIncarnation(NodeId(3), NodeEpoch(9))


def run_of(
    stream_id: int, start: int, payloads: list[tuple[int, bytes]], records: int = 1
) -> StreamRun:
    entries: list[RunEntry] = []
    for count, payload in payloads:
        entries.append(
            RunEntry(
                Offset(start),
                Offset(start + count),
                min(records, count),
                Millis(500 + start),
                Millis(1_000 + start),
                len(payload),
                payload,
            )
        )
        start += count
    return StreamRun(StreamId(stream_id), entries)


def build(
    runs: list[StreamRun], role: ObjectRole = ObjectRole.WAL, block_bytes_max: int = 1 << 20
) -> BuiltObject:
    return build_object(
        role, WRITER, WalSequence(4), Millis(55), runs, block_bytes_max=block_bytes_max
    )


def joined(built: BuiltObject) -> bytes:
    data = b"".join(built.chunks)
    assert len(data) == built.size_bytes
    return data


SMALL = joined(
    build(
        [run_of(2, 10, [(1, b"a" * 61), (5, b"b" * 70)]), run_of(7, 0, [(2, b"c" * 64)])],
        block_bytes_max=100,
    )
)

RUNS = st.lists(
    st.tuples(
        st.integers(0, 1 << 62),
        st.lists(
            st.tuples(st.integers(1, 1_000), st.binary(min_size=61, max_size=200)),
            min_size=1,
            max_size=8,
        ),
    ),
    min_size=1,
    max_size=6,
)


@given(RUNS, st.integers(61, 600), st.integers(0, 400))
def test_objects_survive_a_round_trip(
    raw: list[tuple[int, list[tuple[int, bytes]]]], block_bytes_max: int, first_tail_bytes: int
) -> None:
    runs = [run_of(3 * i, start, payloads) for i, (start, payloads) in enumerate(raw)]
    built = build(runs, block_bytes_max=block_bytes_max)
    data = joined(built)
    index = verify_object(data)
    assert index.ranges == built.ranges
    assert index.footer == built.footer
    assert index.header == parse_header(data)
    assert (index.header.writer, index.header.sequence, index.header.created_ms) == (WRITER, 4, 55)
    for run, found in zip(runs, index.ranges, strict=True):
        payload = b"".join(entry.payload for entry in run.entries)
        start, end = run.entries[0].base_offset, run.entries[-1].end_offset
        assert found == StreamRange(
            run.stream_id,
            start,
            end,
            len(run.entries),
            len(payload),
            run.entries[-1].max_timestamp_ms,
        )
        blocks = index.blocks_of(run.stream_id, start, end)
        assert (
            b"".join(data[block.position : block.position + block.size_bytes] for block in blocks)
            == payload
        )
        assert all(
            block.size_bytes <= block_bytes_max or block.size_bytes <= 200 for block in blocks
        )
        for entry in run.entries:
            covering = index.blocks_of(run.stream_id, entry.base_offset, entry.base_offset + 1)
            assert len(covering) == 1
            assert covering[0].start_offset <= entry.base_offset < covering[0].end_offset
        assert index.blocks_of(run.stream_id, end, end + 10) == []
        assert index.blocks_of(run.stream_id, 0, start) == []
        assert index.blocks_of(StreamId(run.stream_id + 1), 0, 1 << 62) == []
    by_tail = parse_tail(data[len(data) - min(first_tail_bytes, len(data)) :], len(data))
    rounds = 0
    while isinstance(by_tail, NeedMore):
        rounds += 1
        by_tail = parse_tail(data[by_tail.position :], len(data))
    assert rounds <= 2
    assert by_tail.blocks() == index.blocks()


def test_payloads_are_not_copied() -> None:
    payload = memoryview(bytearray(b"x" * 100))
    built = build([run_of(1, 0, [(1, payload)])])  # a view is a buffer
    assert any(chunk is payload for chunk in built.chunks)


@pytest.mark.parametrize(
    "runs",
    [
        [run_of(1, 0, [(1, b"a" * 61)] * (5 * STEP_ENTRIES))],
        [run_of(number, 0, [(1, b"a" * 61)]) for number in range(5 * STEP_ENTRIES)],
        [run_of(1, 0, [(1, bytes(STEP_BYTES))] * 6)],
    ],
    ids=["many entries", "many runs", "many bytes"],
)
def test_a_long_object_is_built_in_steps(runs: list[StreamRun]) -> None:
    built: list[BuiltObject] = []

    def steps() -> Generator[None]:
        built.append(
            (yield from build_steps(ObjectRole.WAL, WRITER, WalSequence(4), Millis(55), runs))
        )

    assert sum(1 for _ in steps()) in (4, 5, 6)
    assert built == [build(runs)]


def test_fences_survive_a_round_trip() -> None:
    fence = fence_object(WRITER, WalSequence(12))
    assert len(fence) == HEADER_BYTES
    index = parse_tail(fence, len(fence))
    assert isinstance(index, ObjectIndex)
    assert index.is_fence
    assert (index.header.role, index.header.writer, index.header.sequence) == (
        ObjectRole.FENCE,
        WRITER,
        12,
    )
    assert (index.ranges, index.blocks(), index.blocks_of(StreamId(0), 0, 10)) == ((), [], [])
    for bit in range(len(fence) * 8):
        with pytest.raises(ObjectCorrupt):
            verify_object(flip(fence, bit))


def flip(data: bytes, bit: int) -> bytes:
    bad = bytearray(data)
    bad[bit // 8] ^= 1 << bit % 8
    return bytes(bad)


def test_any_truncation_is_detected() -> None:
    for cut in range(len(SMALL)):
        with pytest.raises(ObjectCorrupt):
            verify_object(SMALL[:cut])
        with pytest.raises(ObjectCorrupt):
            verify_object(SMALL[cut + 1 :])


def test_any_flipped_bit_is_detected() -> None:
    for bit in range(len(SMALL) * 8):
        with pytest.raises(ObjectCorrupt):
            verify_object(flip(SMALL, bit))


def test_any_flipped_bit_in_the_tail_is_detected_by_tail_readers() -> None:
    index = verify_object(SMALL)
    tail_position = index.blocks()[-1].position + index.blocks()[-1].size_bytes
    for bit in range(tail_position * 8, len(SMALL) * 8):
        with pytest.raises(ObjectCorrupt):
            parse_tail(flip(SMALL, bit)[tail_position:], len(SMALL), "k")


def test_a_block_with_a_flipped_bit_is_rejected() -> None:
    block = verify_object(SMALL).blocks()[0]
    data = SMALL[block.position : block.position + block.size_bytes]
    check_block(block, data)
    with pytest.raises(ObjectCorrupt, match="object key is corrupt at byte 56"):
        check_block(block, flip(data, 100), "key")
    with pytest.raises(ObjectCorrupt):
        check_block(block, data[:-1])


def resealed(header: bytes, blocks: bytes, entries: list[list[int]]) -> bytes:
    """Return an object with correct checksums and these entries."""
    index = header + b"".join(ENTRY.pack(*entry) for entry in entries)
    footer = bytearray(
        FOOTER.pack(
            len(header) + len(blocks),
            len(index),
            crc32c(index),
            1,
            ENTRY_BYTES,
            0,
            layout.END_MAGIC,
        )
    )
    footer[24:28] = crc32c(bytes(footer[:24])).to_bytes(4, "big")
    return header + blocks + index + bytes(footer)


STREAM, START, END, _OLDEST, _NEWEST, _PLAIN, POSITION, SIZE, RECORDS, _CRC = range(10)


@pytest.mark.parametrize(
    ("ordinal", "field", "value"),
    [
        (0, STREAM, -5), (0, STREAM, 8), (1, STREAM, 1), (2, STREAM, 2),
        (0, START, -1), (0, START, 11), (0, START, 1 << 62), (1, START, 10), (1, START, 12),
        (0, END, 10), (0, END, 9), (2, START, 2),
        (0, POSITION, 0), (0, POSITION, 57), (1, POSITION, 56), (1, POSITION, (1 << 64) - 1),
        (0, SIZE, 0), (0, SIZE, 60), (0, SIZE, 62), (2, SIZE, 65), (2, SIZE, (1 << 32) - 1),
        (2, RECORDS, 3), (2, RECORDS, (1 << 32) - 1),
    ],
)  # fmt: skip
def test_hostile_entries_with_valid_checksums_are_rejected(
    ordinal: int, field: int, value: int
) -> None:
    index = verify_object(SMALL)
    entries = [list(block) for block in index.blocks()]
    end = entries[-1][POSITION] + entries[-1][SIZE]
    assert resealed(SMALL[:HEADER_BYTES], SMALL[HEADER_BYTES:end], entries) == SMALL
    entries[ordinal][field] = value
    with pytest.raises(ObjectCorrupt):
        parse_tail(resealed(SMALL[:HEADER_BYTES], SMALL[HEADER_BYTES:end], entries), len(SMALL))


@pytest.mark.parametrize(
    ("index_position", "index_bytes", "version", "entry_bytes"),
    [
        (0, 124, 1, 68), (56, (1 << 64) - 1, 1, 68), ((1 << 64) - 1, 124, 1, 68),
        (1 << 40, 124, 1, 68), (776, 124, 1, 67), (776, 124, 1, 0), (776, 123, 1, 68),
        (776, 56, 1, 68), (10, 890, 1, 68), (56, 56 + 68 * 500_000, 1, 68), (776, 192, 1, 68),
    ],
)  # fmt: skip
def test_hostile_footers_with_valid_checksums_are_rejected(
    index_position: int, index_bytes: int, version: int, entry_bytes: int
) -> None:
    footer = bytearray(
        FOOTER.pack(index_position, index_bytes, 0, version, entry_bytes, 0, layout.END_MAGIC)
    )
    footer[24:28] = crc32c(bytes(footer[:24])).to_bytes(4, "big")
    for size_bytes in (900 + FOOTER_BYTES, 1 << 40, 112 + FOOTER_BYTES):
        with pytest.raises(ObjectCorrupt):
            parse_tail(bytes(footer), size_bytes)


FENCE = fence_object(WRITER, WalSequence(12))


@pytest.mark.parametrize("data", [SMALL, FENCE], ids=["object", "fence"])
@pytest.mark.parametrize("bit", [0, 7, 31])
def test_an_unknown_required_feature_stops_a_reader(data: bytes, bit: int) -> None:
    newer = with_header_field(data, REQUIRED_AT, (1 << bit).to_bytes(4, "big"))
    for read in (verify_object, lambda d, key: parse_tail(d, len(d), key), parse_header):
        with pytest.raises(FormatUnknown, match=f"wal/1.*{1 << bit:#010x}.*not damaged.*later"):
            read(newer, "wal/1")


@pytest.mark.parametrize("data", [SMALL, FENCE], ids=["object", "fence"])
def test_a_reader_ignores_unknown_optional_features(data: bytes) -> None:
    newer = with_header_field(data, OPTIONAL_AT, b"\xff\xff\xff\xff")
    assert newer != data
    assert verify_object(newer).blocks() == verify_object(data).blocks()
    assert verify_object(newer).header == verify_object(data).header


def test_a_newer_version_is_not_reported_as_damage() -> None:
    for data in (SMALL, FENCE):
        newer = with_header_field(data, VERSION_AT, b"\x00\x02")
        with pytest.raises(FormatUnknown, match="format version 2"):
            parse_header(newer, "wal/1")
    footer = bytearray(SMALL)
    footer[-15] = 2
    footer[-12:-8] = crc32c(bytes(footer[-36:-12])).to_bytes(4, "big")
    with pytest.raises(FormatUnknown, match="format version 2"):
        parse_tail(bytes(footer), len(footer), "wal/1")
    # A flipped bit in the same byte is damage.
    for bit in range(8 * (len(SMALL) - 16), 8 * (len(SMALL) - 14)):
        with pytest.raises(ObjectCorrupt):
            verify_object(flip(SMALL, bit))


def test_the_error_for_newer_formats_survives_pickling() -> None:
    error = FormatUnknown("data/x", "format version 9")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.key) == (FormatUnknown, str(error), "data/x")


def test_fields_at_the_end_of_longer_entries_are_ignored() -> None:
    index = verify_object(SMALL)
    blocks = index.blocks()
    end = blocks[-1].position + blocks[-1].size_bytes
    header = SMALL[:HEADER_BYTES]
    entries = header + b"".join(ENTRY.pack(*block) + b"newer" for block in blocks)
    footer = bytearray(
        FOOTER.pack(end, len(entries), crc32c(entries), 1, ENTRY_BYTES + 5, 0, layout.END_MAGIC)
    )
    footer[24:28] = crc32c(bytes(footer[:24])).to_bytes(4, "big")
    longer = verify_object(SMALL[:end] + entries + bytes(footer))
    assert longer.blocks() == blocks
    assert longer.ranges == index.ranges


@pytest.mark.parametrize("role", [0, 4, 5, 255])
def test_roles_without_an_index_are_rejected(role: int) -> None:
    header = bytearray(SMALL[:HEADER_BYTES])
    header[10] = role
    header[52:56] = crc32c(bytes(header[:52])).to_bytes(4, "big")
    index = verify_object(SMALL)
    end = index.blocks()[-1].position + index.blocks()[-1].size_bytes
    with pytest.raises(ObjectCorrupt):
        verify_object(
            resealed(
                bytes(header), SMALL[HEADER_BYTES:end], [list(block) for block in index.blocks()]
            )
        )


def test_a_header_of_another_object_is_detected() -> None:
    other = joined(
        build_object(
            ObjectRole.WAL, WRITER, WalSequence(5), Millis(55), [run_of(2, 10, [(1, b"a" * 61)])]
        )
    )
    with pytest.raises(ObjectCorrupt, match="differ"):
        verify_object(other[:HEADER_BYTES] + SMALL[HEADER_BYTES:])


@pytest.mark.parametrize(
    ("tail_bytes", "size_bytes"), [(0, 0), (55, 55), (56, 57), (56, 40), (100, 99), (100, 100)]
)
def test_impossible_sizes_are_rejected(tail_bytes: int, size_bytes: int) -> None:
    with pytest.raises(ObjectCorrupt):
        parse_tail(b"\x00" * tail_bytes, size_bytes, "k")


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_never_accepted_as_an_object(data: bytes) -> None:
    with pytest.raises(ObjectCorrupt):
        verify_object(data)


def test_the_writer_rejects_invalid_runs() -> None:
    good = run_of(1, 0, [(1, b"x" * 61)])
    gap = run_of(1, 2, [(1, b"x" * 61)])
    gap = StreamRun(StreamId(1), [*good.entries, *gap.entries])
    overlap = run_of(1, 0, [(3, b"x" * 61)])
    overlap = StreamRun(StreamId(1), [*good.entries, *overlap.entries])
    backwards = run_of(1, 4, [(0, b"x" * 61)])
    empty = run_of(1, 4, [(1, b"")])
    for run in (gap, overlap, backwards, empty):
        with pytest.raises(NotContiguous):
            build([run])
    for runs in (
        [],
        [good, good],
        [run_of(2, 0, [(1, b"x" * 61)]), good],
        [StreamRun(StreamId(1), [])],
    ):
        with pytest.raises(ValueError, match="run"):
            build(runs)
    with pytest.raises(ValueError, match="FENCE"):
        build([good], ObjectRole.FENCE)
    with pytest.raises(ValueError, match="STREAM"):
        build([good, run_of(2, 0, [(1, b"x" * 61)])], ObjectRole.STREAM)
