"""Lists and ranges of random keys compared with a plain model."""

import asyncio
from string import ascii_lowercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.objectstore import memory
from penstock.objectstore.errors import InvalidKey, RangeNotSatisfiable
from penstock.objectstore.keys import check_key
from penstock.objectstore.memory import MemoryStore

segments = st.text(alphabet="ab-.~é\U0001f600", min_size=1, max_size=3).filter(
    lambda text: text not in {".", ".."}
)
keys = st.lists(segments, min_size=1, max_size=3).map("/".join)


@given(
    written=st.sets(keys, max_size=30),
    deleted=st.sets(keys, max_size=10),
    prefix=st.one_of(st.just(""), keys, segments),
    start_after=st.one_of(st.just(""), keys),
    page_count=st.integers(1, 7),
)
def test_a_list_matches_the_sorted_model_for_any_page_size(
    written: set[str], deleted: set[str], prefix: str, start_after: str, page_count: int
) -> None:
    async def run() -> list[str]:
        store = MemoryStore(now_ms=lambda: 0)
        for key in written:
            await store.put(key, b"")
        await store.delete(sorted(deleted))
        return [info.key async for info in store.list(prefix, start_after=start_after)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "LIST_PAGE_COUNT", page_count)
        found = asyncio.run(run())
    model = sorted(written - deleted, key=str.encode)
    assert found == [
        key for key in model if key.startswith(prefix) and key.encode() > start_after.encode()
    ]


@given(data=st.binary(max_size=20), start=st.integers(0, 25), length=st.integers(1, 25))
def test_ranges_and_tails_match_slices_of_the_body(data: bytes, start: int, length: int) -> None:
    async def run() -> None:
        store = MemoryStore(now_ms=lambda: 0)
        await store.put("k", data)
        if start < len(data):
            assert await store.get_range("k", start, length) == data[start : start + length]
        else:
            with pytest.raises(RangeNotSatisfiable):
                await store.get_range("k", start, length)
        tail = await store.get_tail("k", length)
        assert (tail.data, tail.size_bytes) == (data[-length:], len(data))

    asyncio.run(run())


@given(st.text(max_size=30) | st.lists(st.sampled_from(["..", ".", "", "a"])).map("/".join))
def test_accepted_keys_stay_inside_their_directory(key: str) -> None:
    try:
        check_key(key)
    except InvalidKey:
        return
    parts = key.split("/")
    assert all(parts)
    assert "." not in parts
    assert ".." not in parts
    assert "\x00" not in key
    assert 1 <= len(key.encode()) <= 1_024


async def test_a_single_bytes_object_is_stored_and_read_without_copying() -> None:
    store = MemoryStore()
    body = ascii_lowercase.encode() * 100
    await store.put("k", body)
    await store.put("chunk", [body])
    assert await store.get("k") is body
    assert await store.get("chunk") is body
