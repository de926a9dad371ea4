"""Probe whether a store honors conditional writes.

Invariant: a store that passes refuses a second `put_if_absent` and a `put_if_match` of another
version. Of several parallel `put_if_absent` of one key it accepts at most one and keeps the bytes
of that one. Some S3-compatible stores and proxies ignore both headers and answer 200; others check
first and write afterwards, so that two parallel writers both succeed. On neither can a dead writer
be fenced. Passing is no proof, because the probe has to hit a race. It writes small objects and
deletes them.
Source: RFC 9110 section 13 (`If-Match`, `If-None-Match`); S3 conditional writes.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final

from penstock.objectstore.errors import (
    ConditionalConflict,
    ConditionalWritesIgnored,
    ObjectStoreError,
    PreconditionFailed,
)
from penstock.objectstore.ports import ObjectStore

RACES_COUNT: Final = 3
RACERS_COUNT: Final = 8
_RACER_BYTES: Final = 16_384
"""A body of this size widens the race of a store that checks before it has read the body."""
_NO_SUCH_ETAG = '"00000000000000000000000000000000"'


async def probe_conditional_writes(store: ObjectStore, key_prefix: str, unique: str) -> None:
    """Raise ConditionalWritesIgnored if the store overwrites where it must refuse.

    unique: a value that no other probe uses (a UUID). Costs about 35 requests; other errors of the
    store propagate.
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
    """Let several writers race. If answers were lost, no writer may have succeeded."""
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
        raise ConditionalWritesIgnored(f"{succeeded}: the store checks first and writes afterwards")
    if winners and await store.get(key) != winners[0]:
        raise ConditionalWritesIgnored(
            "a PUT with If-None-Match: * succeeded, but the store kept the bytes of another PUT,"
            " which it refused"
        )


async def _refused(write: Awaitable[str]) -> bool:
    try:
        await write
    except PreconditionFailed:
        return True
    return False
