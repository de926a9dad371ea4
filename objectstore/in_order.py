"""Sort a LIST without order (S3 Express One Zone), so that callers get what the port promises.

Invariant: the LIST is read to its end before the first key is returned, and one that is too long
raises: a part of a LIST without order proves nothing about the keys that it lacks.
"""

from collections.abc import AsyncIterator
from typing import Final

from penstock.objectstore.errors import ListTooLong
from penstock.objectstore.ports import ObjectInfo

LISTED_MAX: Final = 1_000_000
"""Keys that are sorted in memory, about 300 bytes each. A WAL store has a few thousand."""


async def in_order(
    listed: AsyncIterator[ObjectInfo], prefix: str, *, start_after: str, limit: int
) -> AsyncIterator[ObjectInfo]:
    """Yield as ObjectStore.list does. listed: a complete LIST that includes the prefix, in any
    order. Raises ListTooLong.
    """
    found: dict[str, ObjectInfo] = {}
    async for info in listed:
        if info.key.startswith(prefix) and info.key > start_after:
            found[info.key] = info
            if len(found) > LISTED_MAX:
                raise ListTooLong(prefix, LISTED_MAX)
    for key in sorted(found)[: limit or None]:
        yield found[key]
