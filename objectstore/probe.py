"""Whether a store honours conditional writes, found out by trying.

Invariant: a store that passes refuses a second `put_if_absent` and a `put_if_match` of another version. Some S3-compatible
stores and proxies ignore both headers and answer 200; on these a dead writer could not be fenced. One small object is
written and deleted again. Source: DESIGN.md section 5.
"""

from collections.abc import Awaitable

from objectstore.errors import ConditionalWritesIgnored, PreconditionFailed
from objectstore.ports import ObjectStore

_NO_SUCH_ETAG = '"00000000000000000000000000000000"'


async def probe_conditional_writes(store: ObjectStore, key_prefix: str, unique: str) -> None:
    """Raise ConditionalWritesIgnored if the store overwrites where it must refuse.

    unique: what no other probe uses (a UUID). Costs 5 requests; other errors of the store are passed on.
    """
    key = f"{key_prefix}probe-{unique}"
    try:
        first = await store.put_if_absent(key, b"first")
        if not await _refused(store.put_if_absent(key, b"second")):
            raise ConditionalWritesIgnored("a PUT with If-None-Match: * replaced an object")
        if not await _refused(store.put_if_match(key, b"third", _NO_SUCH_ETAG)):
            raise ConditionalWritesIgnored("a PUT with If-Match replaced another version than it named")
        if await _refused(store.put_if_match(key, b"fourth", first)):
            raise ConditionalWritesIgnored("a PUT with If-Match refused the version it named")
    finally:
        await store.delete([key])


async def _refused(write: Awaitable[str]) -> bool:
    try:
        await write
    except PreconditionFailed:
        return True
    return False
