"""WAL tails as read by store readers."""

import pytest

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    StreamId,
    WalSequence,
)
from penstock.lake.manifest import tail
from penstock.lake.manifest.tail import WalTails
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.errors import FormatUnknown
from penstock.stream.format.builder import StreamRun, build_object
from penstock.stream.format.decoder import verify_object
from penstock.stream.format.keys import wal_key
from penstock.stream.format.manifest.model import LiveWal
from penstock.stream.ports import IN_STORE, ObjectRole
from tests.support.newer_formats import REQUIRED_AT, with_header_field
from tests.support.reader_objects import entry_of

WAL = LiveWal(NodeId(1), NodeEpoch(7), WalSequence(3))


def slot(sequence: int, *, value_bytes: int = 100) -> bytes:
    batch = encode_batch([Record(sequence, 1_000, b"k", bytes(value_bytes))], base_offset=sequence)
    run = StreamRun(StreamId(4), [entry_of(batch)])
    return b"".join(
        build_object(ObjectRole.WAL, WAL.writer, WalSequence(sequence), Millis(0), [run]).chunks
    )


async def walked(*bodies: bytes) -> tuple[WalTails, list[str]]:
    store, keys = MemoryStore(), list[str]()
    for sequence, body in enumerate(bodies, WAL.first_slot):
        keys.append(wal_key(WAL.writer, WalSequence(sequence), IN_STORE))
        await store.put(keys[-1], body)
    tails = WalTails(store)
    tails.follow([WAL])
    await tails.advance()
    return tails, keys


async def test_intact_small_slots_are_cached_completely() -> None:
    damaged = bytearray(slot(4))
    block = verify_object(damaged).blocks()[0]
    damaged[block.position + block.size_bytes // 2] ^= 1
    large = slot(5, value_bytes=100_000)
    tails, keys = await walked(slot(3), bytes(damaged), large, slot(6))
    assert [item.key for item in tails.ranges_of(StreamId(4))] == keys
    assert [tails.body_of(key) for key in keys] == [slot(3), None, None, slot(6)]


async def test_a_slot_of_a_newer_format_stops_the_walk() -> None:
    newer = with_header_field(slot(4), REQUIRED_AT, b"\x80\x00\x00\x00")
    with pytest.raises(FormatUnknown, match="0x80000000"):
        await walked(slot(3), newer, slot(5))


async def test_the_slot_cache_is_limited_and_evicts_the_oldest_slots() -> None:
    slots = [slot(sequence, value_bytes=60_000) for sequence in range(3, 203)]
    tails, keys = await walked(*slots)
    kept = [key for key in keys if tails.body_of(key) is not None]
    assert kept == keys[-len(kept) :]
    assert (
        tail.BODIES_BYTES_MAX - 62_000
        < sum(len(tails.body_of(key) or b"") for key in kept)
        <= tail.BODIES_BYTES_MAX
    )
