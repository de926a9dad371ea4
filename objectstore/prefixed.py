"""Present the keys below a prefix as a store, or under another prefix.

Invariant: keys outside the prefix are neither read nor written. Errors contain the full key.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from penstock.base.buffers import Buffer
from penstock.objectstore.ports import Body, ObjectInfo, ObjectStore, ObjectTail


class PrefixedStore:
    """Wraps a store and adds `prefix`, which ends with a slash, to every key. replaced: the prefix
    that every key must have and that `prefix` replaces.
    """

    def __init__(self, store: ObjectStore, prefix: str, *, replaced: str = "") -> None:
        assert prefix.endswith("/"), f"prefix {prefix!r} does not end with a slash"
        self._store = store
        self._prefix = prefix
        self._replaced = replaced

    def _inner(self, key: str) -> str:
        assert key.startswith(self._replaced), f"key {key!r} is not below {self._replaced!r}"
        return self._prefix + key.removeprefix(self._replaced)

    def _outer(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, key=self._replaced + info.key.removeprefix(self._prefix))

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return await self._store.get(self._inner(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See ObjectStore.get_range."""
        return await self._store.get_range(self._inner(key), start, length)

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        return await self._store.get_tail(self._inner(key), length)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        return replace(await self._store.head(self._inner(key)), key=key)

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        return await self._store.put(self._inner(key), body)

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        return await self._store.put_if_absent(self._inner(key), body)

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        return await self._store.put_if_match(self._inner(key), body, etag)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        after = self._inner(start_after) if start_after else ""
        async for info in self._store.list(self._inner(prefix), start_after=after, limit=limit):
            yield self._outer(info)

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        await self._store.delete([self._inner(key) for key in keys])

    async def close(self) -> None:
        """Close the wrapped store."""
        await self._store.close()
