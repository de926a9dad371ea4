"""Sort an unordered LIST (S3 Express One Zone), because the port guarantees the order of keys.

Invariant: the LIST is read to its end before the first key is returned, and a LIST that is too long
raises an error, because a part of an unordered LIST proves nothing about missing keys.
"""

from collections.abc import AsyncIterator
from typing import Final

from penstock.objectstore.errors import ListTooLong
from penstock.objectstore.ports import ObjectInfo

LISTED_MAX: Final = 1_000_000
"""Maximum number of keys that are sorted in memory, each about 300 bytes. A WAL store contains a
few thousand.
"""


async def in_order(
    listed: AsyncIterator[ObjectInfo], prefix: str, *, start_after: str, limit: int
) -> AsyncIterator[ObjectInfo]:
    """Yield objects like ObjectStore.list. listed: a complete LIST that includes the prefix, in any
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
