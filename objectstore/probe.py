"""Probe whether a store honors conditional writes and lists keys in the order of their bytes.

Passing the probe proves nothing: a store that checks the condition before it writes fails only in
some races. The probe writes small objects and deletes them. Source: RFC 9110 section 13
(`If-Match`, `If-None-Match`); S3 conditional writes.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from penstock.objectstore.errors import (
    ConditionalConflict,
    ConditionalWritesIgnored,
    DeadlineExceeded,
    ListOrderUnsupported,
    ObjectStoreError,
    PreconditionFailed,
)
from penstock.objectstore.ports import ObjectStore

RACES_COUNT: Final = 3
RACERS_COUNT: Final = 8
_RACER_BYTES: Final = 16_384
"""Size of the bodies, large enough to widen the race in a store that checks the condition before it
has read the body.
"""

_ORDERED_ENDS: Final = ("-b", "/b", "0", "A/b", "Aa", "a")
"""Key suffixes in byte order: `-` is before `/`, and uppercase before lowercase."""


async def probe_store(store: ObjectStore, key_prefix: str, unique: str) -> None:
    """Raise ConditionalWritesIgnored or ListOrderUnsupported if Penstock cannot run on the store.

    unique: a value that no other probe uses (a UUID). Sends about 40 requests, or about 50 on
    Google. Other store errors propagate.
    """
    await probe_conditional_writes(store, key_prefix, unique)
    await _probe_list_order(store, f"{key_prefix}probe-{unique}-order")


async def probe_wal_store(store: ObjectStore, key_prefix: str, unique: str) -> None:
    """Raise ConditionalWritesIgnored or ListOrderUnsupported if WALs cannot be in the store. WALs
    never replace objects, so `put_if_match` is not needed.

    unique: a value that no other probe uses (a UUID). Other store errors propagate.
    """
    key = f"{key_prefix}probe-{unique}"
    raced = [f"{key}-{race}" for race in range(RACES_COUNT)]
    async with _deleting(store, [key, *raced]):
        await store.put_if_absent(key, b"first")
        if not await _refused(store.put_if_absent(key, b"second")):
            raise ConditionalWritesIgnored("a PUT with If-None-Match: * replaced an object")
        for race in raced:
            await _race(store, race)
    await _probe_list_order(store, f"{key}-order")


async def probe_conditional_writes(store: ObjectStore, key_prefix: str, unique: str) -> None:
    """Raise ConditionalWritesIgnored if the store overwrites an object although the condition
    fails, or if several concurrent `put_if_absent` of one key succeed. On such a store, a dead
    writer cannot be fenced.

    unique: a value that no other probe uses (a UUID). Sends about 35 requests. Other store errors
    propagate.
    """
    key = f"{key_prefix}probe-{unique}"
    raced = [f"{key}-{race}" for race in range(RACES_COUNT)]
    async with _deleting(store, [key, *raced]):
        first = await store.put_if_absent(key, b"first")
        if not await _refused(store.put_if_absent(key, b"second")):
            raise ConditionalWritesIgnored("a PUT with If-None-Match: * replaced an object")
        if await _refused(store.put_if_match(key, b"third", first)):
            raise ConditionalWritesIgnored(
                "a PUT with If-Match was rejected although the version matched"
            )
        if not await _refused(store.put_if_match(key, b"fourth", first)):
            raise ConditionalWritesIgnored(
                "a PUT with If-Match replaced a version that did not match"
            )
        for race in raced:
            await _race(store, race)


@asynccontextmanager
async def _deleting(store: ObjectStore, keys: Sequence[str]) -> AsyncGenerator[None]:
    """Delete the objects at the end. The first error is raised. If the store has not responded by a
    deadline, nothing more is sent to it; `penstock doctor` finds objects that are left.
    """
    try:
        yield
    except DeadlineExceeded:
        raise
    except BaseException:
        with suppress(ObjectStoreError):
            await store.delete(keys)
        raise
    await store.delete(keys)


async def _probe_list_order(store: ObjectStore, key: str) -> None:
    keys = [f"{key}{end}" for end in _ORDERED_ENDS]
    async with _deleting(store, keys):
        await asyncio.gather(*(store.put(key, b"order") for key in keys))
        listed = [info.key async for info in store.list(key)]
        after = [info.key async for info in store.list(key, start_after=keys[1])]
    if (listed, after) != (keys, keys[2:]):
        raise ListOrderUnsupported([found.removeprefix(key) for found in listed])


async def _race(store: ObjectStore, key: str) -> None:
    """Run several concurrent writers. If responses were lost, it is possible that no call has
    succeeded.
    """
    bodies = [bytes([racer]) * _RACER_BYTES for racer in range(RACERS_COUNT)]
    outcomes = await asyncio.gather(
        *(store.put_if_absent(key, body) for body in bodies), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(
            outcome, PreconditionFailed | ConditionalConflict
        ):
            raise outcome
    winners = [
        body
        for body, outcome in zip(bodies, outcomes, strict=True)
        if not isinstance(outcome, ObjectStoreError)
    ]
    if len(winners) > 1:
        succeeded = (
            f"{len(winners)} of {RACERS_COUNT} PUTs of one key at once, with If-None-Match: *, all"
            " succeeded"
        )
        raise ConditionalWritesIgnored(
            f"{succeeded}: the store does not check and write atomically"
        )
    if winners and await store.get(key) != winners[0]:
        raise ConditionalWritesIgnored(
            "a PUT with If-None-Match: * succeeded, but the store kept the bytes of another PUT,"
            " which it rejected"
        )


async def _refused(write: Awaitable[str]) -> bool:
    try:
        await write
    except PreconditionFailed:
        return True
    return False
