"""Penstock writes the worked examples of docs/reference/formats.md byte for byte. Stored bytes must
not change, because readers in other languages follow that page.
"""

import re
from array import array
from pathlib import Path
from uuid import UUID

import cramjam

from penstock.base.ids import Millis, NodeEpoch, NodeId, Offset, StreamEpoch, StreamId, WalSequence
from penstock.protocol.batch.header import parse_header, patch_offset_and_epoch
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.format.builder import RunEntry, StreamRun, build_object
from penstock.stream.format.manifest import codec
from penstock.stream.format.manifest.model import (
    Entries,
    LiveWal,
    ManifestRoot,
    PartitionEntry,
    Shard,
    StreamEntry,
    TopicEntry,
)
from penstock.stream.format.transaction_log import (
    AbortedTransaction,
    TransactionEvent,
    encode_event,
)
from penstock.stream.ports import OWN_STREAM, BrokerIncarnation, ObjectRole

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "formats.md"
MS = 1_700_000_000_000


def dumps(heading: str) -> list[bytes]:
    """Return the bytes of each code block with a dump below the heading."""
    text = DOCUMENT.read_text()
    start = text.index(f"\n### {heading}\n")
    chapter = text[start : text.index("\n## ", start)]
    blocks = re.findall(r"^```\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)
    lines = [
        re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ?)+)", block, re.MULTILINE) for block in blocks
    ]
    return [bytes.fromhex("".join(dump)) for dump in lines if dump]


def test_the_object_example() -> None:
    batch = encode_batch(
        [Record(0, MS, b"k", b"v"), Record(1, MS + 5, None, b"")],
    )
    patch_offset_and_epoch(batch, 0, 100, 7)
    entry = RunEntry.of_batch(bytes(batch), parse_header(batch))
    writer = BrokerIncarnation(NodeId(3), NodeEpoch(17))
    runs = [StreamRun(StreamId(42), [entry])]
    built = build_object(ObjectRole.WAL, writer, WalSequence(5), Millis(MS + 9), runs, depth=2)
    assert dumps("2.6 Example") == [b"".join(built.chunks)]


def test_the_txn_stream_example() -> None:
    began = TransactionEvent(Offset(0))
    aborted = TransactionEvent(Offset(-1), AbortedTransaction(9, 0, 2))
    epoch = StreamEpoch(7)
    first = encode_event(began, Offset(0), Offset(2), epoch, Millis(MS))
    second = encode_event(aborted, Offset(2), Offset(3), epoch, Millis(MS + 1_000))
    assert dumps("5.2 Example of a txn stream") == [bytes(first + second)]


def manifest() -> tuple[bytes, bytes, bytes]:
    """Return a manifest, and its sections before compression: the shard and the root."""

    def column(value: int) -> "array[int]":
        return array("q", [value])

    entries = Entries(
        array("q", [0, 2]),
        column(2),
        column(77),
        column(MS + 5),
        column(293),
        column(OWN_STREAM),
        b"\x03",
        ["data/b2a10000/6699"],
    )
    data, txn = StreamEntry(42, 0, 2, (), entries), StreamEntry(43, 0, 0, (), Entries.empty(0))
    topic_id = UUID("00112233-4455-6677-8899-aabbccddeeff")
    shard = codec.encode_shard(Shard(topic_id, 0, (PartitionEntry(0, 3, 7, data, txn),)))
    draft = codec.Draft(1)
    topic = TopicEntry("t", topic_id, 1, (draft.add(shard),), {}, is_internal=False)
    wal = LiveWal(NodeId(3), NodeEpoch(17), WalSequence(5))
    root = ManifestRoot(
        "c", 4, 1, 99, Millis(MS), (wal,), (topic,), 60_000, {"cleanup.policy": "delete"}
    )
    whole = b"".join(draft.finish(root))
    footer = codec.parse_footer(whole, len(whole), "manifest")
    at = footer.root.position
    stored = whole[at : at + footer.root.stored_bytes]
    return whole, shard, bytes(cramjam.zstd.decompress(stored))


def test_the_manifest_example() -> None:
    assert dumps("7.1 Example") == list(manifest())
