"""Run Penstock's own decoders on the conformance vectors of `tests/formats`, as readers in other
languages do.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import StreamError
from penstock.base.ids import ObjectId
from penstock.lake.arrow.decode import Place
from penstock.lake.arrow.topic_scan import scan
from penstock.lake.fetch.errors import ObjectStillMissing, ReadError
from penstock.lake.manifest.errors import EndInDoubt
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.records import Record, decode_records
from penstock.stream.errors import FormatUnknown, ObjectCorrupt, WalSlotLost
from penstock.stream.format.block_walk import Piece, batches_of
from penstock.stream.format.decoder import ObjectIndex, check_block, parse_tail, verify_object
from penstock.stream.format.layout import BlockEntry
from penstock.stream.format.manifest.model import split_name
from penstock.stream.ports import ObjectRange
from penstock.topic_list import topics
from tests.formats.batches import row_json
from tests.formats.generate import FOLDERS, HERE, contents
from tests.sim.loop import VirtualLoop
from tests.support.reader_objects import decode, records_of, rows_of

OBJECTS = sorted(path.stem for path in (HERE / "objects").glob("*.json"))
STORES = sorted(path.parent.name for path in (HERE / "stores").glob("*/expected.json"))
COLUMNS = ("offset", "timestamp", "key", "value", "headers")


def expected_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


SOUND = [name for name in OBJECTS if "error" not in expected_of(HERE / f"objects/{name}.json")]
WRONG = sorted(set(OBJECTS) - set(SOUND))


def test_the_vectors_match_the_output_of_the_generator() -> None:
    written = dict(contents())
    stored = {
        str(path.relative_to(HERE)): path.read_bytes()
        for folder in FOLDERS
        for path in (HERE / folder).rglob("*")
        if path.is_file()
    }
    assert sorted(stored) == sorted(written)
    assert [path for path, data in written.items() if stored[path] != data] == []


def test_the_vectors_stay_small() -> None:
    sizes = [
        path.stat().st_size
        for path in HERE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert max(sizes) < 100_000
    assert sum(sizes) < 500_000


# --- objects --------------------------------------------------------------------------------------


def object_of(name: str) -> tuple[bytes, dict[str, Any]]:
    return (HERE / f"objects/{name}.bin").read_bytes(), expected_of(HERE / f"objects/{name}.json")


def index_of(data: bytes, key: str) -> ObjectIndex:
    index = parse_tail(data, len(data), key)
    assert isinstance(index, ObjectIndex)
    return index


def piece_of(key: str, index: ObjectIndex, block: BlockEntry) -> Piece:
    (part,) = [part for part in index.ranges if part.stream_id == block.stream_id]
    return Piece(
        ObjectRange(ObjectId(1), key, index.header.role, index.object_size_bytes, part), block
    )


@pytest.mark.parametrize("name", SOUND)
def test_valid_object_vectors(name: str) -> None:
    data, expected = object_of(name)
    index = verify_object(data, expected["key"])
    header = index.header
    assert header.role.name.lower() == expected["role"]
    assert header.writer == (expected["node_id"], expected["node_epoch"])
    assert header.sequence == expected["sequence"]
    assert header.created_ms == expected["created_ms"]
    assert header.depth == expected["depth"]
    blocks = index.blocks()
    assert [block._asdict() for block in blocks] == expected["blocks"]
    rows: list[dict[str, Any]] = []
    for block in blocks:
        payload = data[block.position : block.position + block.size_bytes]
        records = records_of(payload)
        rows += [{"stream": block.stream_id, **row_json(record)} for record in records]
        place = Place("x", "t", 0, block.start_offset, block.end_offset)
        for compiled in (False, True):
            table = decode(payload, place, compiled=compiled, columns=COLUMNS)
            assert rows_of(table) == [tuple(record) for record in records]
    assert rows == expected["rows"]


@pytest.mark.parametrize("name", WRONG)
def test_invalid_object_vectors(name: str) -> None:
    data, expected = object_of(name)
    key, step = expected["key"], expected["found_in"]
    kinds = {"damaged": ObjectCorrupt, "newer": FormatUnknown}
    with pytest.raises(kinds[expected["error"]]):
        verify_object_and_batches(data, key)
    if step == "tail":
        with pytest.raises(kinds[expected["error"]]):
            index_of(data, key)
        return
    index = index_of(data, key)
    if step == "whole":
        return
    blocks = [
        (block, data[block.position : block.position + block.size_bytes])
        for block in index.blocks()
    ]
    if step == "block":
        with pytest.raises(ObjectCorrupt):
            check_blocks(blocks, key)
        return
    assert step == "batch"
    check_blocks(blocks, key)
    with pytest.raises(ReadError):
        decode_blocks(blocks, key)


def check_blocks(blocks: Sequence[tuple[BlockEntry, bytes]], key: str) -> None:
    for block, payload in blocks:
        check_block(block, payload, key)


def decode_blocks(blocks: Sequence[tuple[BlockEntry, bytes]], key: str) -> None:
    for block, payload in blocks:
        place = Place(key, "t", 0, block.start_offset, block.end_offset)
        decode(payload, place, compiled=True, columns=COLUMNS)


def verify_object_and_batches(data: bytes, key: str) -> None:
    """Verify all of an object, down to its records. Raises ObjectCorrupt or FormatUnknown."""
    index = verify_object(data, key)
    for block in index.blocks():
        payload = data[block.position : block.position + block.size_bytes]
        try:
            for at, span in batches_of(piece_of(key, index, block), payload):
                decode_records(memoryview(payload)[at : at + span.size_bytes])
        except BatchCorrupt as error:
            raise ObjectCorrupt(key, block.position, str(error)) from None


# --- stores ---------------------------------------------------------------------------------------


def bucket_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def kind_of(error: StreamError) -> str:
    if isinstance(error, EndInDoubt):
        return kind_of(error.error)
    if isinstance(error, FormatUnknown):
        return "newer"
    if isinstance(error, WalSlotLost | ObjectStillMissing):
        return "lost"
    assert isinstance(error, ObjectCorrupt | ReadError), repr(error)
    return "damaged"


async def said_of(objects: dict[str, bytes]) -> dict[str, Any]:
    """Return what a view of the manifest and the WALs reports about a store, without its rows."""
    store = MemoryStore()
    for key, data in objects.items():
        await store.put(key, data)
    view = ClusterView(store)
    try:
        root = await view.refresh()
    except StreamError as error:
        return {"error": kind_of(error)}
    found: list[dict[str, Any]] = []
    for topic in sorted(root.topics, key=lambda topic: topic.name):
        try:
            states = await view.partitions([topic.name], committed=True)
            partitions: list[dict[str, Any]] = [
                {
                    "partition": state.partition,
                    "log_start": state.log_start,
                    "end_offset": state.end_offset,
                    "last_stable_offset": state.readable_end(committed=True),
                }
                for state in states
            ]
        except StreamError as error:
            partitions = [{"partition": 0, "error": kind_of(error)}]
        found.append(
            {
                "name": topic.name,
                "topic_id": str(topic.topic_id),
                "configs": topic.configs,
                "is_internal": topic.is_internal,
                "partitions": partitions,
            }
        )
    return {
        "cluster_id": view.cluster_id,
        "config_defaults": root.config_defaults,
        "topics": found,
    }


def without_rows(expected: dict[str, Any]) -> dict[str, Any]:
    """Return the expected result in the form of `said_of`; read errors are checked later."""
    if "error" in expected:
        return expected
    topics_ = [
        {
            **topic,
            "partitions": [
                {
                    name: value
                    for name, value in partition.items()
                    if name not in {"rows", "committed_offsets"}
                    and (name != "error" or "end_offset" not in partition)
                }
                for partition in topic["partitions"]
            ],
        }
        for topic in sorted(expected["topics"], key=lambda topic: str(topic["name"]))
    ]
    return {**expected, "topics": topics_}


def test_snapshot_topics_are_found_only_through_their_snapshot(tmp_path: Path) -> None:
    shutil.copytree(HERE / "stores/snapshot-topic/bucket", tmp_path / "bucket")
    known = topics(f"file:{tmp_path}/bucket", snapshots=True)
    assert [(topic.name, topic.snapshot) for topic in known] == [
        ("orders", ""),
        ("orders", "nightly"),
    ]
    assert len(topics(f"file:{tmp_path}/bucket")) == 1


@pytest.mark.parametrize("name", STORES)
def test_store_vectors(name: str) -> None:
    expected = expected_of(HERE / f"stores/{name}/expected.json")
    loop = VirtualLoop()
    try:
        said = loop.run_until_complete(said_of(bucket_of(HERE / f"stores/{name}/bucket")))
    finally:
        loop.close()
    assert said == without_rows(expected)


def parts_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the partitions of a store vector that can be planned."""
    expected = expected_of(HERE / f"stores/{name}/expected.json")
    return [
        (topic["name"], partition)
        for topic in expected.get("topics", ())
        for partition in topic["partitions"]
        if "end_offset" in partition
    ]


@pytest.mark.parametrize("name", [name for name in STORES if parts_of(name)])
def test_rows_of_store_vectors(name: str, tmp_path: Path) -> None:
    # Use a copy, because opening a directory as a store creates folders in it.
    shutil.copytree(HERE / f"stores/{name}/bucket", tmp_path / "bucket")
    check_rows(f"file:{tmp_path}/bucket", parts_of(name))


def check_rows(url: str, parts: list[tuple[str, dict[str, Any]]]) -> None:
    for name, partition in parts:
        number = partition["partition"]
        topic, snapshot = split_name(name)
        if "error" in partition:
            with pytest.raises(StreamError) as raised:
                scan(url, topic, partitions=[number]).to_table()
            assert kind_of(raised.value) == partition["error"]
            continue
        rows = scan(url, topic, snapshot=snapshot, partitions=[number], columns=COLUMNS)
        assert rows.offsets[number] == (partition["log_start"], partition["end_offset"])
        assert [row_json_of(row) for row in rows_of(rows.to_table())] == partition["rows"]
        committed = scan(
            url,
            topic,
            snapshot=snapshot,
            partitions=[number],
            columns=["offset"],
            isolation_level="read_committed",
        )
        assert committed.offsets[number][1] == partition["last_stable_offset"]
        every = [row["offset"] for row in partition["rows"]]
        assert committed.to_table()["offset"].to_pylist() == partition.get(
            "committed_offsets", every
        )


def row_json_of(row: Any) -> dict[str, Any]:
    return row_json(Record(*row))
