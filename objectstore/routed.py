"""Route keys to several stores by prefix.

Invariant: a key below the routed root is never sent to the main store, so a missing store is an
error and is not mistaken for a missing object.
"""

from collections.abc import AsyncIterator, Sequence

from penstock.base.buffers import Buffer
from penstock.objectstore.errors import StoreUnknown
from penstock.objectstore.ports import Body, ObjectInfo, ObjectStore, ObjectTail


class RoutedStore:
    """Sends keys below `root` to the stores that `add` maps to their prefixes, and all other keys
    to `main`. A LIST must not span stores.
    """

    def __init__(self, main: ObjectStore, root: str) -> None:
        self._main = main
        self._root = root
        self._routes: dict[str, ObjectStore] = {}

    def add(self, prefix: str, store: ObjectStore) -> None:
        """Route keys with this prefix, which ends with a slash, to the store. Keys are passed on
        unchanged.
        """
        assert prefix.startswith(self._root), f"{prefix!r} is not below {self._root!r}"
        assert prefix.endswith("/"), f"prefix {prefix!r} does not end with a slash"
        self._routes[prefix] = store

    def remove(self, prefix: str) -> None:
        """Stop routing keys with this prefix; using such a key then raises StoreUnknown."""
        del self._routes[prefix]

    def _of(self, key: str) -> ObjectStore:
        if not key.startswith(self._root):
            return self._main
        for prefix, store in self._routes.items():
            if key.startswith(prefix):
                return store
        raise StoreUnknown(key)

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return await self._of(key).get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See ObjectStore.get_range."""
        return await self._of(key).get_range(key, start, length)

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        return await self._of(key).get_tail(key, length)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        return await self._of(key).head(key)

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        return await self._of(key).put(key, body)

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        return await self._of(key).put_if_absent(key, body)

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        return await self._of(key).put_if_match(key, body, etag)

    def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        return self._of(prefix).list(prefix, start_after=start_after, limit=limit)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete all keys, one store after another."""
        by_store: dict[int, tuple[ObjectStore, list[str]]] = {}
        for key in keys:
            store = self._of(key)
            by_store.setdefault(id(store), (store, []))[1].append(key)
        for store, its_keys in by_store.values():
            await store.delete(its_keys)

    async def close(self) -> None:
        """Close all stores."""
        for store in (self._main, *self._routes.values()):
            await store.close()
