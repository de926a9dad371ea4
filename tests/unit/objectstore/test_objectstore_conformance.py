"""The contract that every backend and every wrapper must fulfil."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from penstock.objectstore.azure import AzureStore
from penstock.objectstore.config import S3Config
from penstock.objectstore.directory import DirectoryStore
from penstock.objectstore.errors import (
    InvalidKey,
    ObjectNotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
)
from penstock.objectstore.faults import Fault, FaultyStore, Selection
from penstock.objectstore.gcs import GcsStore
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore
from penstock.objectstore.ports import ObjectInfo, ObjectStore
from penstock.objectstore.prefixed import PrefixedStore
from penstock.objectstore.probe import probe_store, probe_wal_store
from penstock.objectstore.remote import RemoteStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.objectstore.s3 import S3Store
from penstock.objectstore.s3_express import S3ExpressStore
from penstock.objectstore.shared_directory import SharedDirectoryStore

KINDS = [
    "memory",
    "directory",
    "shared directory",
    "s3",
    "s3 express",
    "retrying",
    "metered",
    "prefixed",
    "faulty",
]


@pytest.fixture(params=KINDS)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, new_bucket: Callable[[], S3Config]
) -> AsyncIterator[ObjectStore]:
    makers: dict[str, Callable[[], ObjectStore]] = {
        "memory": MemoryStore,
        "directory": lambda: DirectoryStore(str(tmp_path)),
        "shared directory": lambda: SharedDirectoryStore(str(tmp_path)),
        "s3": lambda: S3Store(new_bucket()),
        "s3 express": lambda: S3ExpressStore(request.getfixturevalue("new_directory_bucket")()),
        "retrying": lambda: RetryingStore(MemoryStore()),
        "metered": lambda: MeteredStore(MemoryStore()),
        "prefixed": lambda: PrefixedStore(MemoryStore(), "some/where/"),
        "faulty": lambda: FaultyStore(MemoryStore(), Random(0)),
    }
    made = makers[request.param]()
    yield made
    await made.close()


def skip_without_swaps(store: ObjectStore) -> None:
    if isinstance(store, SharedDirectoryStore):
        pytest.skip("WALs replace nothing, so a shared directory has no put_if_match")


async def listed(
    store: ObjectStore, prefix: str, start_after: str = "", limit: int = 0
) -> list[ObjectInfo]:
    return [info async for info in store.list(prefix, start_after=start_after, limit=limit)]


async def test_an_object_survives_a_round_trip(store: ObjectStore) -> None:
    etag = await store.put("a/b", b"hello")
    assert await store.get("a/b") == b"hello"
    info = await store.head("a/b")
    assert (info.key, info.size_bytes, info.etag) == ("a/b", 5, etag)
    assert info.modified_ms > 1_600_000_000_000
    (entry,) = await listed(store, "")
    assert (entry.key, entry.size_bytes) == ("a/b", 5)
    assert entry.etag == etag or isinstance(store, GcsStore), "Google lists no generations"


async def test_a_put_replaces_and_changes_the_etag(store: ObjectStore) -> None:
    first = await store.put("k", b"one")
    second = await store.put("k", b"two")
    (before,) = await listed(store, "")
    third = await store.put("k", b"three")
    (after,) = await listed(store, "")
    assert len({first, second, third}) == 3
    assert before.etag != after.etag
    assert await store.get("k") == b"three"


@pytest.mark.parametrize("write", ["put", "put_if_absent", "put_if_match"])
async def test_a_body_may_consist_of_chunks_of_any_buffer_type(
    store: ObjectStore, write: str
) -> None:
    body = [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b""]
    if write == "put":
        await store.put("k", body)
    elif write == "put_if_absent":
        await store.put_if_absent("k", body)
    else:
        skip_without_swaps(store)
        await store.put_if_match("k", body, await store.put("k", b"old"))
    assert await store.get("k") == b"abcdef"


LARGE_BYTES = 320 * 1024
"""Larger than what any store treats as a small body, and not a multiple of the block size of direct
writes.
"""

_numbers = np.arange(LARGE_BYTES // 4 + 3, dtype=np.int32)
VIEWS = {
    "pyarrow": memoryview(pa.py_buffer(_numbers)),
    "signed bytes": memoryview(_numbers.tobytes()).cast("b"),
    "integers": memoryview(_numbers),
    "big-endian integers": memoryview(_numbers.astype(">i4")),
    "two dimensions": memoryview(_numbers[:-3].reshape(8, -1)),
    "columns first": memoryview(np.asfortranarray(_numbers[:-3].reshape(8, -1))),
    "every second byte": memoryview(_numbers.tobytes())[::2],
    "backwards": memoryview(_numbers.tobytes())[::-1],
    "structures": memoryview(np.zeros(LARGE_BYTES // 12, dtype=[("a", "i4"), ("b", "f8")])),
    "no dimension": memoryview(np.array(7)),
    "no rows": memoryview(np.zeros((0, 4), np.int8)),
    "not aligned": memoryview(_numbers.tobytes())[1:],
}


@pytest.mark.parametrize("name", VIEWS)
async def test_a_body_may_be_a_view_of_any_type_shape_and_stride(
    store: ObjectStore, name: str
) -> None:
    view, filler = VIEWS[name], bytes(LARGE_BYTES)
    for body, content in (
        (view, view.tobytes()),
        ([view, b"x", view], view.tobytes() + b"x" + view.tobytes()),
        ([filler, view], filler + view.tobytes()),
    ):
        etag = await store.put("k", body)
        assert await store.get("k") == content
        assert (await store.head("k")).size_bytes == len(content)
        if not isinstance(store, SharedDirectoryStore):
            await store.put_if_match("k", body, etag)
            assert await store.get("k") == content
    await store.put_if_absent("new", view)
    assert await store.get("new") == view.tobytes()


@pytest.mark.parametrize("body", [b"", [], bytearray(), memoryview(b"")])
async def test_an_empty_object_can_be_stored(store: ObjectStore, body: bytes) -> None:
    await store.put("k", body)
    assert await store.get("k") == b""
    assert (await store.head("k")).size_bytes == 0
    tail = await store.get_tail("k", 10)
    assert (tail.data, tail.size_bytes) == (b"", 0)
    with pytest.raises(RangeNotSatisfiable):
        await store.get_range("k", 0, 1)


async def test_later_changes_to_the_callers_buffer_do_not_affect_the_object(
    store: ObjectStore,
) -> None:
    body = bytearray(b"before")
    await store.put("k", body)
    body[:] = b"after!"
    assert await store.get("k") == b"before"


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 1, b"0"),
        (0, 10, b"0123456789"),
        (3, 4, b"3456"),
        (9, 1, b"9"),
        (5, 100, b"56789"),
        (0, 1 << 40, b"0123456789"),
    ],
)
async def test_ranges_are_half_open_and_end_at_the_object_size(
    store: ObjectStore, start: int, length: int, expected: bytes
) -> None:
    await store.put("k", b"0123456789")
    assert await store.get_range("k", start, length) == expected


@pytest.mark.parametrize("start", [10, 11, 1 << 40])
async def test_a_range_after_the_end_is_rejected(store: ObjectStore, start: int) -> None:
    await store.put("k", b"0123456789")
    with pytest.raises(RangeNotSatisfiable) as caught:
        await store.get_range("k", start, 1)
    assert caught.value.start == start


@pytest.mark.parametrize(
    ("length", "expected"), [(1, b"9"), (10, b"0123456789"), (11, b"0123456789")]
)
async def test_a_tail_contains_the_size_of_the_object(
    store: ObjectStore, length: int, expected: bytes
) -> None:
    await store.put("k", b"0123456789")
    tail = await store.get_tail("k", length)
    assert (tail.data, tail.size_bytes) == (expected, 10)


@pytest.fixture
def folder_error() -> type[Exception]:
    """Return the error of a conditional PUT that replaces a folder."""
    return ObjectNotFound


async def test_missing_keys_raise_object_not_found(
    store: ObjectStore, folder_error: type[Exception]
) -> None:
    await store.put("present/k", b"")
    for key in ["absent", "present", "present/k/below", "absent/k"]:
        with pytest.raises(ObjectNotFound):
            await store.get(key)
        with pytest.raises(ObjectNotFound):
            await store.get_range(key, 0, 1)
        with pytest.raises(ObjectNotFound):
            await store.get_tail(key, 1)
        with pytest.raises(ObjectNotFound):
            await store.head(key)
        missing = folder_error if key == "present" else ObjectNotFound
        with pytest.raises((missing, InvalidKey)):
            await store.put_if_match(key, b"x", '"0"')


async def test_put_if_absent_succeeds_once_per_key(store: ObjectStore) -> None:
    etag = await store.put_if_absent("k", b"first")
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("k", b"second")
    assert await store.get("k") == b"first"
    assert (await store.head("k")).etag == etag
    await store.delete(["k"])
    await store.put_if_absent("k", b"third")
    assert await store.get("k") == b"third"


async def test_put_if_match_replaces_only_the_given_version(store: ObjectStore) -> None:
    skip_without_swaps(store)
    first = await store.put("k", b"1")
    second = await store.put_if_match("k", b"2", first)
    with pytest.raises(PreconditionFailed):
        await store.put_if_match("k", b"3", first)
    assert await store.get("k") == b"2"
    await store.put_if_match("k", b"4", second)
    assert await store.get("k") == b"4"


@pytest.mark.parametrize("operation", ["put_if_absent", "put_if_match"])
async def test_a_write_whose_response_was_lost_is_recognized(
    store: ObjectStore, operation: str
) -> None:
    """The retry is rejected with 412 or another status, and the etag of the first attempt is valid
    for the next write.
    """
    skip_without_swaps(store)
    faulty = FaultyStore(store, Random(0))
    retrying = RetryingStore(faulty, RetryPolicy(backoff_ms=1))
    before = await store.put("k", b"before") if operation == "put_if_match" else ""
    faulty.script(Fault.LOST_RESPONSE, Selection(frozenset({operation})))
    if operation == "put_if_match":
        etag = await retrying.put_if_match("k", b"ours", before)
    else:
        etag = await retrying.put_if_absent("k", b"ours")
    assert faulty.injected[Fault.LOST_RESPONSE] == 1
    await store.put_if_match("k", b"next", etag)
    assert await store.get("k") == b"next"


async def test_one_of_several_concurrent_swaps_succeeds(store: ObjectStore) -> None:
    skip_without_swaps(store)
    etag = await store.put("k", b"0")

    async def swap(number: int) -> bool:
        try:
            await store.put_if_match("k", b"new %d" % number, etag)
        except PreconditionFailed:
            return False
        return True

    assert sum(await asyncio.gather(*(swap(number) for number in range(8)))) == 1


async def test_one_of_several_concurrent_creations_succeeds_and_its_object_stays(
    store: ObjectStore,
) -> None:
    async def create(number: int) -> int | None:
        try:
            await store.put_if_absent("slot", bytes([number]) * 1_000_000)
        except PreconditionFailed:
            return None
        return number

    winners = [
        number for number in await asyncio.gather(*map(create, range(6))) if number is not None
    ]
    assert len(winners) == 1
    assert await store.get("slot") == bytes(winners) * 1_000_000


async def test_delete_accepts_absent_keys_and_many_keys(store: ObjectStore) -> None:
    # This is more than one batch; Azure deletes absent keys one by one.
    count = 260 if isinstance(store, AzureStore) else 1_003
    keys = [f"d/{number:04d}" for number in range(count)]
    for key in keys[:3] + keys[-3:]:
        await store.put(key, b"")
    await store.delete(["absent", "d/0000/below", *keys])
    await store.delete([])
    assert await listed(store, "d/") == []


@pytest.fixture
def nested_key(store: ObjectStore) -> str:
    """Return a key below `a/x` if the store allows that, otherwise a similar one."""
    folders = DirectoryStore | SharedDirectoryStore | S3ExpressStore  # unknown for the last
    return "a/x.d/y" if isinstance(store, folders) else "a/x/y"


async def test_a_list_is_ordered_by_utf8_bytes_and_respects_its_bounds(
    store: ObjectStore, nested_key: str
) -> None:
    keys = [
        "a-b",
        "a/x",
        "a/x-",
        nested_key,
        "ab",
        "b/é",
        "b/z",
        "b/\U0001f600",
        "b/\uff01",
        "c",
    ]
    if isinstance(store, AzureStore):
        keys.remove("b/\U0001f600")
    for key in reversed(keys):
        await store.put(key, key.encode())
    ordered = sorted(keys, key=str.encode)
    assert [info.key for info in await listed(store, "")] == ordered
    for prefix in ["", "a", "a/", "a/x", "b/", "b/é", "zzz", "../", "/", "a//"]:
        for after in ["", "a", "a/", "a/x", "a0", "b/\uff01", "zzzz"]:
            expected = [
                key for key in ordered if key.startswith(prefix) and key.encode() > after.encode()
            ]
            assert [info.key for info in await listed(store, prefix, after)] == expected, (
                prefix,
                after,
            )
            assert [info.key for info in await listed(store, prefix, after, limit=2)] == expected[
                :2
            ], (prefix, after)


async def test_a_list_of_more_than_one_page_is_complete(store: ObjectStore) -> None:
    count = (
        1_001 if isinstance(store, RemoteStore | DirectoryStore | SharedDirectoryStore) else 2_500
    )
    keys = [f"p/{number:05d}" for number in range(count)]
    for start in range(0, count, 50):
        await asyncio.gather(*(store.put(key, b"x") for key in keys[start : start + 50]))
    await store.put("q", b"")
    infos = await listed(store, "p/")
    assert [info.key for info in infos] == keys
    assert {info.size_bytes for info in infos} == {1}
    assert [info.key for info in await listed(store, "p/", keys[-2])] == keys[-1:]
    assert [info.key for info in await listed(store, "p/", limit=1_001)] == keys[:1_001]


async def test_deleting_while_listing_is_safe(store: ObjectStore) -> None:
    for number in range(20):
        await store.put(f"k{number:02d}", b"")
    seen: list[str] = []
    async for info in store.list("k"):
        seen.append(info.key)
        await store.delete([info.key])
    assert seen == [f"k{number:02d}" for number in range(20)]
    assert await listed(store, "") == []


@pytest.mark.parametrize(
    "key",
    [
        "a b",
        "a+b%2F",
        "é/ü",
        "a?b=c&d",
        "a#b",
        "x" * 255,
        "~/$*(){}[]'\"<>&;:@=,|\\^`",
        "a/.b/c..d/...",
    ],
)
async def test_unusual_keys_are_supported(store: ObjectStore, key: str) -> None:
    if isinstance(store, SharedDirectoryStore) and "/." in key:
        with pytest.raises(InvalidKey, match="begin with a dot"):
            await store.put_if_absent(key, b"v")
        return
    if isinstance(store, AzureStore) and ("\\" in key or key.endswith(".")):
        with pytest.raises(InvalidKey, match="on Azure"):
            await store.put_if_absent(key, b"v")
        return
    await store.put_if_absent(key, b"v")
    assert await store.get(key) == b"v"
    assert [info.key for info in await listed(store, "")] == [key]
    await store.delete([key])
    assert await listed(store, "") == []


@pytest.mark.parametrize(
    "key",
    [
        "/a",
        "a/",
        "a//b",
        "..",
        "../a",
        "a/../b",
        "a/.",
        ".",
        "a\x00b",
        "a\nb",
        "\ud800",
        "x/" * 512 + "y",
    ],
)
async def test_keys_that_some_backends_cannot_store_are_rejected(
    store: ObjectStore, key: str
) -> None:
    with pytest.raises(InvalidKey):
        await store.put(key, b"")
    with pytest.raises(InvalidKey):
        await store.put_if_absent(key, b"")
    with pytest.raises(InvalidKey):
        await store.get(key)
    with pytest.raises(InvalidKey):
        await store.delete([key])


async def test_the_probe_succeeds_and_leaves_no_objects(store: ObjectStore) -> None:
    await probe_wal_store(store, "meta/", "1")
    assert await listed(store, "") == []
    skip_without_swaps(store)
    await probe_store(store, "meta/", "1")
    assert await listed(store, "") == []
