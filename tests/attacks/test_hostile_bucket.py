"""Objects made by someone with write access to the bucket: Spark, `scan` and SQL return rows or a
documented error, in bounded memory and time. They return wrong rows only if all checksums are
valid.
"""

import asyncio
import gzip
import resource
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import cramjam
import msgspec
import pytest

from penstock import scan, sql
from penstock.base.errors import StreamError
from penstock.lake.spark.source import PenstockSource
from penstock.lake.sql.errors import SqlError
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.url import open_store
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import HEADER_BYTES
from penstock.stream.format.manifest import codec
from penstock.stream.format.manifest.model import LiveWal, ManifestRoot
from tests.fuzz import seals
from tests.support.reader_objects import sealed
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

Objects = dict[str, bytes]
Rows = list[tuple[int, int]]
DOCUMENTED = (StreamError, ObjectStoreError, SqlError)
MEMORY_KIB_MAX = 600_000
"""Maximum memory growth of the process while it reads all hostile objects. One batch may decompress
to 64 MiB, and parts of 8 MiB are read ahead.
"""
SECONDS_MAX = PATIENCE_S
"""Time limit for one store on a busy machine. Reading it normally takes 0.1 s."""
VALUE_BYTES = 400_000
VALUES = [Random(seed).randbytes(VALUE_BYTES) for seed in (1, 2)]
"""Each value is in a batch of its own: one in an object, one only in the WAL."""


def published(cluster: ThreadedCluster) -> Objects:
    async def copy() -> Objects:
        return {
            info.key: await cluster.store.get(info.key) async for info in cluster.store.list("")
        }

    return cluster.run(copy())


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Return the objects of a topic `t`: uploaded and compacted objects, and WAL slots."""
    with ThreadedCluster(tmp_path_factory.mktemp("cluster"), brokers=1) as cluster:
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        cluster.create("t", 2)
        cluster.create("c", 1, configs=compacted)
        before = cluster.keys("data/")
        cluster.produce(record("c", 0, n, b"%d" % (n % 10)) for n in range(100))
        cluster.until_uploaded("c", before)
        cluster.compact("c")
        wait_until(lambda: scan(cluster.store_url, "c").to_table().num_rows == 10)
        cluster.produce(record("t", n % 2, n) for n in range(100))
        cluster.produce([{"topic": "t", "partition": 0, "value": VALUES[0]}])
        before = cluster.keys("data/")
        wait_until(lambda: cluster.keys("data/") - before)
        cluster.produce(record("t", n % 2, n) for n in range(100))
        cluster.produce([{"topic": "t", "partition": 0, "value": VALUES[1]}])
        return published(cluster)


def record(topic: str, partition: int, number: int, key: bytes = b"k") -> dict[str, Any]:
    value = b'{"n": %d}' % number
    return {"topic": topic, "partition": partition, "key": key, "value": value}


class Store:
    """A store in a directory with these objects. Each instance has its own directory."""

    def __init__(self, directory: Path, objects: Objects) -> None:
        self.url = f"file:{directory}"
        self._objects = objects
        self._changed: set[str] = set(objects)

    def put(self, hostile: Objects) -> None:
        """Write these objects, and restore all others."""
        requested = {key: self._objects[key] for key in self._changed} | hostile
        asyncio.run(self._put(requested))
        self._changed = {key for key in hostile if key in self._objects}

    async def _put(self, objects: Objects) -> None:
        store = open_store(self.url)
        try:
            for key, data in objects.items():
                await store.put(key, data)
        finally:
            await store.close()


@pytest.fixture
def store(tmp_path: Path, objects: Objects) -> Store:
    return Store(tmp_path, objects)


def by_scan(url: str) -> Rows:
    found: Rows = []
    for topic in ("t", "c"):
        table = scan(url, topic).to_table()
        found += zip(*(table[name].to_pylist() for name in ("partition", "offset")), strict=True)
    return sorted(found)


def by_sql(url: str) -> Rows:
    query = "SELECT _partition, _offset FROM t WHERE _value IS NOT NULL ORDER BY ALL"
    return [(row[0], row[1]) for row in sql(query, store=url).rows()]


def by_spark(url: str) -> Rows:
    """Read as the Spark driver and executors do."""
    source = PenstockSource({"store": url, "subscribe": "t", "columns": "value,partition,offset"})
    reader: Any = source.reader(source.schema())
    found: Rows = []
    for task in reader.partitions():
        for batch in reader.read(task):
            found += zip(*(batch.column(at).to_pylist() for at in (1, 2)), strict=True)
    return sorted(found)


READERS: Mapping[str, Callable[[str], Rows]] = {"scan": by_scan, "sql": by_sql, "spark": by_spark}


def examine(url: str, what: str, *, read: Callable[[str], Rows]) -> Rows | Exception:
    """Return the rows or the documented error. Fail on any other exception."""
    began = time.monotonic()
    found: Rows | Exception
    try:
        found = read(url)
    except DOCUMENTED as error:
        found = error
    except BaseException as error:
        error.add_note(what)
        raise
    assert time.monotonic() - began < SECONDS_MAX, what
    return found


# --- random damage --------------------------------------------------------------------------------

SEALS: Mapping[str, Callable[[bytes], bytes]] = {
    "wal/": seals.object_,
    "data/": seals.object_,
    "manifest/": seals.manifest,
}
EXTREMES = (
    *(b"\xff" * size for size in (1, 4, 8)),
    *(value.to_bytes(8, order) for value in (1 << 40, 1 << 62) for order in ("big", "little")),
    b"\x7f" + b"\xff" * 3,
    b"\x00" * 8,
)


def damaged(data: bytes, rng: Random) -> bytes:
    """Truncate the object, or write an extreme number near its start, near its end or anywhere."""
    kind = rng.randrange(8)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    changed, value = bytearray(data), rng.choice(EXTREMES)
    near = min(len(data), 400)
    at = {1: rng.randrange(near), 2: len(data) - 1 - rng.randrange(near)}.get(
        kind, rng.randrange(len(data))
    )
    changed[at : at + len(value)] = value[: len(data) - at]
    return bytes(changed)


def used(objects: Objects, prefixes: tuple[str, ...]) -> list[str]:
    """Return the objects below the prefixes except old manifests."""
    newest, _ = newest_manifest(objects)
    return [
        key
        for key in sorted(objects)
        if key.startswith(prefixes) and (key == newest or not key.startswith("manifest/"))
    ]


@pytest.mark.parametrize("name", READERS)
def test_damaged_objects_never_return_wrong_rows(store: Store, objects: Objects, name: str) -> None:
    read, rng = READERS[name], Random(f"damage {name}")
    count = 60 if name == "scan" else 12
    store.put({})
    expected = read(store.url)
    assert len(expected) == {"scan": 212}.get(name, 202)
    refused = 0
    for number in range(count * 10):
        # Some objects hold no rows for this reader, so a few rounds may change nothing.
        if number >= count and refused:
            break
        key = rng.choice(used(objects, tuple(SEALS)))
        store.put({key: damaged(objects[key], rng)})
        found = examine(store.url, f"{key} {number}", read=read)
        assert isinstance(found, Exception) or found == expected, (key, number)
        refused += isinstance(found, Exception)
    assert refused


@pytest.mark.parametrize("name", READERS)
def test_damage_with_valid_checksums_is_rejected_or_read(
    store: Store, objects: Objects, name: str
) -> None:
    read, rng = READERS[name], Random(f"sealed {name}")
    count = 120 if name == "scan" else 12
    store.put({})
    read(store.url)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        prefix = rng.choice(list(SEALS))
        key = rng.choice(used(objects, (prefix,)))
        store.put({key: SEALS[prefix](damaged(objects[key], rng))})
        examine(store.url, f"{key} {number}", read=read)
    for number in range(count):
        key, data = newest_manifest(objects)
        store.put({key: rebuilt(data, lambda raw: damaged(raw, rng), lambda root: root)})
        examine(store.url, f"sections {number}", read=read)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB_MAX


# --- manifests ------------------------------------------------------------------------------------


def newest_manifest(objects: Objects) -> tuple[str, bytes]:
    return max((key, data) for key, data in objects.items() if key.startswith("manifest/"))


def rebuilt(
    data: bytes,
    section: Callable[[bytes], bytes],
    change: Callable[[ManifestRoot], ManifestRoot],
) -> bytes:
    """Return the manifest with other sections and another root, and valid checksums."""
    footer = codec.parse_footer(data, len(data), "manifest")
    at = footer.root
    root = codec.decode_root(
        codec.unpack_section(data[at.position : at.position + at.stored_bytes], at, ""), footer, ""
    )
    draft, topics = codec.Draft(root.version), []
    for topic in root.topics:
        shards = []
        for ref in topic.shards:
            if ref.version == root.version:
                stored = data[ref.position : ref.position + ref.stored_bytes]
                ref = draft.add(section(bytes(codec.unpack_section(stored, ref, ""))))
            shards.append(ref)
        topics.append(msgspec.structs.replace(topic, shards=tuple(shards)))
    return b"".join(draft.finish(change(msgspec.structs.replace(root, topics=tuple(topics)))))


def with_root(data: bytes, raw: bytes, *, raw_bytes: int | None = None) -> bytes:
    """Return the manifest with these bytes as its root."""
    footer = codec.parse_footer(data, len(data), "manifest")
    stored = bytes(cramjam.zstd.compress(raw))
    at = footer.root.position
    head = data[:at] + stored
    fields = [*codec.FOOTER.unpack(data[-codec.FOOTER.size :])]
    fields[1], fields[2] = len(stored), len(raw) if raw_bytes is None else raw_bytes
    return seals.manifest(head + codec.FOOTER.pack(*fields))


def topics_of(root: ManifestRoot, **changes: Any) -> ManifestRoot:
    topics = tuple(msgspec.structs.replace(topic, **changes) for topic in root.topics)
    return msgspec.structs.replace(root, topics=topics)


def hostile_manifests(data: bytes) -> Iterator[tuple[str, bytes]]:
    def same(raw: bytes) -> bytes:
        return raw

    yield "deep root", with_root(data, b"\x91" * 5_000_000)
    yield "deep map", with_root(data, b"\x81\xa1x" * 1_000_000)
    yield "long array", with_root(data, b"\xdd\xff\xff\xff\xff")
    yield "long text", with_root(data, b"\x97\xdb\xff\xff\xff\xffx")
    yield "bomb", with_root(data, bytes(1 << 30))
    yield "bomb that declares little", with_root(data, bytes(1 << 30), raw_bytes=1_000)
    yield "bomb that declares the limit", with_root(data, bytes(1 << 30), raw_bytes=64 << 20)
    for name, section in (
        ("deep shard", lambda _: b"\x91" * 5_000_000),
        ("big shard", lambda _: bytes(60 << 20)),
        ("long shard", lambda _: b"\x95\xd9\x10" + bytes(16) + b"\x00\xc6\xff\xff\xff\xff"),
    ):
        yield name, rebuilt(data, section, lambda root: root)
    for count in (0, 1, 257, 1 << 31, 1 << 62):
        yield (
            f"{count} partitions",
            rebuilt(data, same, lambda root, count=count: topics_of(root, partition_count=count)),
        )
    wals = tuple(msgspec.convert((n, 1, 0), type=LiveWal) for n in range(50_000))
    yield "WALs", rebuilt(data, same, lambda root: msgspec.structs.replace(root, wals=wals))


@pytest.fixture(scope="module")
def manifests(objects: Objects) -> list[tuple[str, bytes]]:
    return list(hostile_manifests(newest_manifest(objects)[1]))


@pytest.mark.parametrize("name", READERS)
def test_hostile_manifests_are_rejected(
    store: Store, objects: Objects, manifests: list[tuple[str, bytes]], name: str
) -> None:
    key, _ = newest_manifest(objects)
    store.put({})
    READERS[name](store.url)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what, hostile in manifests:
        store.put({key: hostile})
        examine(store.url, what, read=READERS[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB_MAX


# --- bombs ----------------------------------------------------------------------------------------


@cache
def gzip_bomb(size: int) -> bytes:
    """Return a gzip bomb: the file name in its header decompresses to the whole size."""
    packed = gzip.compress(bytes(300 << 20), 9)
    name = b"x" * (size - len(packed) - 1) + b"\0"
    return packed[:3] + b"\x08" + packed[4:10] + name + packed[10:]


def skipped(packed: bytes, size: int) -> bytes:
    """Return a zstd or LZ4 frame preceded by a skippable frame."""
    filler = size - len(packed) - 8
    return struct.pack("<II", 0x184D2A50, filler) + bytes(filler) + packed


@cache
def zstd_bomb(size: int) -> bytes:
    return skipped(bytes(cramjam.zstd.compress(bytes(512 << 20))), size)


@cache
def lz4_bomb(size: int) -> bytes:
    return skipped(bytes(cramjam.lz4.compress(bytes(90 << 20))), size)


def snappy_bomb(size: int) -> bytes:
    return b"\xff\xff\xff\xff\x0f" + bytes(size - 5)


BOMBS = {
    Compression.GZIP: gzip_bomb,
    Compression.ZSTD: zstd_bomb,
    Compression.LZ4: lz4_bomb,
    Compression.SNAPPY: snappy_bomb,
}


def with_bomb(data: bytes, value: bytes, bomb: Callable[[int], bytes], codec_id: int) -> bytes:
    """Return the object with a bomb in place of the batch that has this value."""
    value_at = data.index(value)
    at, length = next(
        (at, length)
        for at in range(value_at - 2 * HEADER_BYTES, value_at)
        if len(value) < (length := int.from_bytes(data[at + 8 : at + 12])) < len(value) + 200
        and data[at + 16] == 2
    )
    size = 12 + length
    batch = bytearray(data[at : at + HEADER_BYTES] + bomb(size - HEADER_BYTES))
    assert len(batch) == size
    batch[22] |= codec_id
    return seals.object_(data[:at] + sealed(batch) + data[at + size :])


@pytest.mark.parametrize("name", READERS)
def test_bombs_in_objects_use_memory_up_to_the_limit(
    store: Store, objects: Objects, name: str
) -> None:
    store.put({})
    READERS[name](store.url)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for codec_id, bomb in BOMBS.items():
        hostile: Objects = {}
        for key, data in objects.items():
            for value in VALUES:
                if value in data:
                    hostile[key] = with_bomb(data, value, bomb, codec_id)
        assert {key.partition("/")[0] for key in hostile} == {"data", "wal"}
        for key, data in hostile.items():
            store.put({key: data})
            examine(store.url, f"{key} {codec_id.name}", read=READERS[name])
        store.put(hostile)
        assert isinstance(examine(store.url, codec_id.name, read=READERS[name]), StreamError), (
            codec_id
        )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB_MAX
