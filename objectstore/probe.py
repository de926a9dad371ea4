"""Whether a store honors conditional writes, found out by trying.

Invariant: a store that passes refuses a second `put_if_absent` and a `put_if_match` of another
version, and of several `put_if_absent` of one key at once it accepts at most one and keeps that
one's bytes. Some S3-compatible stores and proxies ignore both headers and answer 200; others check
first and write afterwards, so that two writers at once both succeed. On either a dead writer could
not be fenced. Passing is no proof: a race has to be met. Small objects are written and deleted
again. Source: RFC 9110 section 13 (`If-Match`, `If-None-Match`); S3 conditional writes.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

from objectstore.errors import (
    ConditionalConflict,
    ConditionalWritesIgnored,
    ObjectStoreError,
    PreconditionFailed,
)
from objectstore.ports import ObjectStore

RACES_COUNT: Final = 3
RACERS_COUNT: Final = 8
_RACER_BYTES: Final = 16_384
"""A store that checks before it has read the body leaves a longer gap."""
_NO_SUCH_ETAG = '"00000000000000000000000000000000"'


async def probe_conditional_writes(store: ObjectStore, key_prefix: str, unique: str) -> None:
    """Raise ConditionalWritesIgnored if the store overwrites where it must refuse.

    unique: what no other probe uses (a UUID). Costs about 35 requests; other errors of the store
    are passed on.
    """
    key = f"{key_prefix}probe-{unique}"
    raced = [f"{key}-{race}" for race in range(RACES_COUNT)]
    try:
        first = await store.put_if_absent(key, b"first")
        if not await _refused(store.put_if_absent(key, b"second")):
            raise ConditionalWritesIgnored("a PUT with If-None-Match: * replaced an object")
        if not await _refused(store.put_if_match(key, b"third", _NO_SUCH_ETAG)):
            raise ConditionalWritesIgnored(
                "a PUT with If-Match replaced another version than it named"
            )
        if await _refused(store.put_if_match(key, b"fourth", first)):
            raise ConditionalWritesIgnored("a PUT with If-Match refused the version it named")
        for race in raced:
            await _race(store, race)
    finally:
        await store.delete([key, *raced])


async def _race(store: ObjectStore, key: str) -> None:
    """Several writers at once; none may have succeeded, if answers were lost."""
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
        told = (
            f"{len(winners)} of {RACERS_COUNT} PUTs of one key at once, with If-None-Match: *, all"
            " succeeded"
        )
        raise ConditionalWritesIgnored(f"{told}: it checks first and writes afterwards")
    if winners and await store.get(key) != winners[0]:
        raise ConditionalWritesIgnored(
            "a PUT with If-None-Match: * succeeded, and the bytes of another PUT, which was"
            " refused, were kept"
        )


async def _refused(write: Awaitable[str]) -> bool:
    try:
        await write
    except PreconditionFailed:
        return True
    return False
