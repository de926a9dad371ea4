"""The manifest codec: byte-exact, with round trips; anything else raises ObjectCorrupt. Also plans
of single partitions.
"""

from array import array
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import cramjam
import msgspec
import pytest
from crc32c import crc32c

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    WalSequence,
    WalStoreId,
)
from penstock.lake.manifest.errors import OffsetsLost, OffsetsMissing
from penstock.lake.manifest.plan import (
    OffsetRange,
    Source,
    TailRange,
    joined_tail,
    plan,
)
from penstock.stream.errors import FormatUnknown, ObjectCorrupt
from penstock.stream.format.keys import manifest_key, parse_manifest_key
from penstock.stream.format.manifest import codec
from penstock.stream.format.manifest.codec import Draft
from penstock.stream.format.manifest.model import (
    Entries,
    LiveWal,
    ManifestRoot,
    PageRef,
    PartitionEntry,
    SectionRef,
    Shard,
    StreamEntry,
    TopicEntry,
    WalStoreEntry,
)
from penstock.stream.ports import OWN_STREAM
from tests.support.newer_formats import (
    MANIFEST_OPTIONAL_AT,
    MANIFEST_REQUIRED_AT,
    MANIFEST_VERSION_AT,
    with_footer_field,
)

TOPIC_ID = UUID(int=7)
KEY = "manifest/c/x"


def entries(start: int, *spans: int) -> Entries:
    bounds = array("q", [start])
    for span in spans:
        bounds.append(bounds[-1] + span)
    numbers = range(len(spans))
    return Entries(
        bounds,
        array("q", spans),
        array("q", [100 * span for span in spans]),
        array("q", [1_000 + n for n in numbers]),
        array("q", [5_000 + n for n in numbers]),
        array("q", [OWN_STREAM if n % 2 else 77 for n in numbers]),
        bytes([3] * len(spans)),
        [f"data/b2a10000/{6_699 + n}" for n in numbers],
    )


def a_shard(draft: Draft) -> Shard:
    page = entries(0, 10, 20, 30)
    ref = PageRef(0, 60, 3, 60, 6_000, 1_002, draft.add(codec.encode_entries(page)))
    events = PageRef(0, 60, 3, 60, 6_000, 1_002, draft.add(codec.encode_entries(page)))
    txn = StreamEntry(42, 60, 66, (events,), entries(60, 4, 2))
    full = PartitionEntry(0, 3, 5, StreamEntry(41, 4, 70, (ref,), entries(60, 10)), txn)
    empty = PartitionEntry(
        1, -1, 0, StreamEntry(44, 0, 0, (), entries(0)), StreamEntry(45, 0, 0, (), entries(0))
    )
    return Shard(TOPIC_ID, 0, (full, empty))


def written(version: int = 1) -> tuple[bytes, Shard, ManifestRoot]:
    draft = Draft(version)
    shard = a_shard(draft)
    configs = {"cleanup.policy": "compact"}
    section = draft.add(codec.encode_shard(shard))
    topic = TopicEntry("flights", TOPIC_ID, 2, (section,), configs, is_internal=False)
    wal = LiveWal(NodeId(3), NodeEpoch(17), WalSequence(5))
    root = ManifestRoot("c", 2, version, 99, Millis(1_700_000_000_123), (wal,), (topic,))
    return b"".join(draft.finish(root)), shard, root


def read(data: bytes) -> tuple[ManifestRoot, Shard, Entries]:
    footer = codec.parse_footer(data[-codec.FOOTER.size :], len(data), KEY)
    root = codec.decode_root(
        codec.unpack_section(section(data, footer.root), footer.root, KEY), footer, KEY
    )
    ref = root.topics[0].shards[0]
    shard = codec.decode_shard(codec.unpack_section(section(data, ref), ref, KEY), ref, KEY)
    page = shard.partitions[0].data.pages[0]
    return (
        root,
        shard,
        codec.decode_entries(
            codec.unpack_section(section(data, page.section), page.section, KEY), page, KEY
        ),
    )


def section(data: bytes, ref: SectionRef) -> bytes:
    return data[ref.position : ref.position + ref.stored_bytes]


def test_manifests_survive_a_round_trip() -> None:
    data, shard, root = written()
    assert read(data) == (root, shard, entries(0, 10, 20, 30))


@pytest.mark.parametrize("newest_ms", [-1, ~1_700_000_000_000, -(2**63)])
def test_blocks_with_an_unknown_maximum_timestamp_are_read(newest_ms: int) -> None:
    draft = Draft(1)
    unknown = replace(entries(0, 10, 20), max_timestamps_ms=array("q", [newest_ms, 5]))
    last = replace(entries(30, 4), max_timestamps_ms=array("q", [newest_ms]))
    section = draft.add(codec.encode_entries(unknown))
    page = PageRef(0, 30, 2, 30, 3_000, newest_ms, section)
    stream = StreamEntry(41, 0, 34, (page,), last)
    empty = StreamEntry(42, 0, 0, (), entries(0))
    shard = Shard(TOPIC_ID, 0, (PartitionEntry(0, 3, 5, stream, empty),))
    raw = memoryview(codec.encode_shard(shard))
    assert codec.decode_shard(raw, section, KEY) == shard
    raw = memoryview(codec.encode_entries(unknown))
    assert codec.decode_entries(raw, page, KEY) == unknown


def test_the_bytes_match_the_documentation() -> None:
    data, _, root = written()
    assert data[:16] == b"PNSTMNFT" + bytes.fromhex("0003 000000000000")
    footer = data[-60:]
    at, stored, raw, crc, epoch, version, required, optional, form, _, end = codec.FOOTER.unpack(
        footer
    )
    assert (epoch, version, form, end) == (2, 1, 3, b"TFMNTSNP")
    assert (required, optional) == (0, 0)
    assert at + stored == len(data) - 60
    assert crc32c(data[at : at + stored]) == crc
    plain = bytes(cramjam.zstd.decompress(data[at : at + stored]))
    assert len(plain) == raw
    assert plain.startswith(
        bytes.fromhex("99 a1 63 02 01 63 cf 0000018bcfe5687b 91 93 03 11 05 91 96 a7")
        + b"flights\xd9\x24"
    )
    page = bytes(
        cramjam.zstd.decompress(section(data, read(data)[1].partitions[0].data.pages[0].section))
    )
    assert page.startswith(
        bytes.fromhex("94 00 c4 90") + (10).to_bytes(8, "big") + (20).to_bytes(8, "big")
    )
    assert page.endswith(b"data/b2a10000/6699\ndata/b2a10000/6700\ndata/b2a10000/6701")
    assert root.moment == (2, 1)


@pytest.mark.parametrize(
    ("at", "field", "what"),
    [
        (MANIFEST_REQUIRED_AT, b"\x00\x00\x00\x10", "required features 0x00000010"),
        (MANIFEST_VERSION_AT, b"\x00\x04", "format version 4"),
    ],
)
def test_a_newer_manifest_is_rejected_but_not_reported_as_damaged(
    at: int, field: bytes, what: str
) -> None:
    newer = with_footer_field(written()[0], at, field)
    with pytest.raises(FormatUnknown, match=f"{KEY} has {what}.*not damaged"):
        read(newer)


def test_a_reader_ignores_unknown_optional_features() -> None:
    data, shard, root = written()
    newer = with_footer_field(data, MANIFEST_OPTIONAL_AT, b"\xff\xff\xff\xff")
    assert read(newer) == (root, shard, entries(0, 10, 20, 30))


def test_keys_sort_with_the_newest_first() -> None:
    keys = [manifest_key("c", version) for version in (1, 2, 9, 10, 99_999, (1 << 63) - 1)]
    assert keys == sorted(keys, reverse=True)
    assert keys[0] == "manifest/c/99999999999999999998"
    assert [parse_manifest_key(key) for key in keys[:2]] == [("c", 1), ("c", 2)]
    for other in (
        "manifest/c/1",
        "manifest/c/" + "0" * 20,
        "manifest//99999999999999999998",
        keys[0] + "0",
        "manifest/c/d/" + "9" * 20,
    ):
        assert parse_manifest_key(other) is None


@pytest.mark.parametrize("seed", range(20))
def test_hostile_sections_with_valid_checksums_are_rejected_or_consistent(seed: int) -> None:
    rng = Random(seed)
    draft = Draft(1)
    shard = a_shard(draft)
    page = shard.partitions[0].data.pages[0]
    plain = codec.Footer(SectionRef(1, 0, 0, 0, 0), 2, 0)
    with_wal_stores = plain._replace(required_features=codec.WAL_STORES)
    root = written()[2]
    store = WalStoreEntry(WalStoreId(1), UUID(int=1), "s3://wals")
    decoders: list[Any] = [
        (codec.encode_shard(shard), lambda raw, ref: codec.decode_shard(raw, ref, KEY)),
        (
            codec.encode_entries(entries(0, 10, 20, 30)),
            lambda raw, ref: codec.decode_entries(raw, replace(page, section=ref), KEY),
        ),
        (codec.encode_root(root), lambda raw, _: codec.decode_root(raw, plain, KEY)),
        (
            codec.encode_root(msgspec.structs.replace(root, wal_stores=(store,))),
            lambda raw, _: codec.decode_root(raw, with_wal_stores, KEY),
        ),
    ]
    for _ in range(100):
        good, decode = rng.choice(decoders)
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            how = rng.random()
            if how < 0.6:
                data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xC0, 0xFF, rng.randrange(256)])
            elif how < 0.8:
                del data[at : at + rng.randint(1, 9)]
                data = data or bytearray(b"\x00")
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
        ref = draft.add(bytes(data))
        stored = draft._chunks[-1]
        with suppress(ObjectCorrupt):
            decode(codec.unpack_section(stored, ref, KEY), ref)


def test_a_section_larger_than_its_declared_size_is_rejected() -> None:
    bomb = bytes(cramjam.zstd.compress(bytes(10 << 20)))
    for raw_bytes in (100, 1 << 40):
        with pytest.raises(ObjectCorrupt):
            codec.unpack_section(bomb, SectionRef(1, 16, len(bomb), raw_bytes, crc32c(bomb)), KEY)


def slot(start: int, end: int, name: str = "") -> TailRange:
    return TailRange(
        name or f"wal/{start}", 1_000, start, end, end - start, 100 * (end - start), 2_000
    )


def spans(slices: Any) -> list[tuple[str, int, int]]:
    return [(item.key.rpartition("/")[2], item.start_offset, item.end_offset) for item in slices]


def test_the_tail_continues_the_stream_up_to_a_gap() -> None:
    found = [
        slot(30, 40),
        slot(5, 12),
        slot(20, 30),
        slot(12, 20),
        slot(50, 60),
        slot(0, 5),
        slot(20, 30, "wal/again"),
    ]
    assert [(item.start_offset, item.end_offset) for item in joined_tail(7, found)] == [
        (7, 12),
        (12, 20),
        (20, 30),
        (30, 40),
    ]
    assert joined_tail(60, found) == []
    assert joined_tail(41, found) == []


def test_committed_entries_take_precedence_over_the_tail() -> None:
    source = Source(41, 3, 90, [entries(0, 10, 20), entries(30, 20)], [slot(40, 60), slot(60, 90)])
    got = plan(OffsetRange("t", 0, 3, 85), source)
    assert spans(got) == [
        ("6699", 3, 10),
        ("6700", 10, 30),
        ("6699", 30, 50),
        ("40", 50, 60),
        ("60", 60, 85),
    ]
    assert [item.record_count for item in got] == [7, 20, 20, 10, 25]
    assert spans(plan(OffsetRange("t", 0, 12, 13), source)) == [("6700", 12, 13)]
    assert plan(OffsetRange("t", 0, 12, 12), source) == []


def test_errors_contain_ranges_that_cannot_be_covered() -> None:
    hole = Source(41, 3, 90, [entries(0, 10), entries(30, 20)], [slot(60, 90)])
    with pytest.raises(OffsetsMissing) as missing:
        plan(OffsetRange("t", 4, 5, 50), hole)
    assert (missing.value.start_offset, missing.value.end_offset, missing.value.partition) == (
        10,
        30,
        4,
    )
    with pytest.raises(OffsetsMissing) as missing:
        plan(OffsetRange("t", 4, 35, 70), hole)
    assert (missing.value.start_offset, missing.value.end_offset) == (50, 60)
    with pytest.raises(OffsetsMissing) as missing:
        plan(OffsetRange("t", 4, 35, 91), hole)
    assert (missing.value.start_offset, missing.value.end_offset) == (90, 91)
    with pytest.raises(OffsetsLost) as lost:
        plan(OffsetRange("t", 4, 1, 35), hole)
    assert (lost.value.start_offset, lost.value.end_offset, lost.value.log_start) == (1, 3, 3)
