"""The WAL store, as seen by a broker: verify its identity at registration, and access every WAL
store listed in the metadata, because any of them may contain a WAL to recover.
"""

import asyncio
from typing import Final

import msgspec
import structlog

from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import RequestRefused
from penstock.controller.api.messages import BrokerRegistered, RegisterBroker, Status
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.image import MetadataImage
from penstock.objectstore.errors import (
    ConditionalWritesIgnored,
    FileSystemUnsuitable,
    ListOrderUnsupported,
    ObjectStoreError,
)
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.probe import probe_store, probe_wal_store
from penstock.stream.config import StreamConfig
from penstock.stream.wal.wal_store import ConfiguredWalStore, WalStores, identity_of

log = structlog.get_logger(__name__)

PROBE_TIMEOUT_S: Final = 20.0
IDENTITY_TIMEOUT_S: Final = 5.0
"""Maximum wait at startup for a WAL store that does not respond, if the broker can run without
it.
"""


class BrokerStores:
    """The store of a broker, and its WAL store if it has one. `store` routes requests to both."""

    def __init__(
        self, store: ObjectStore, configured: ConfiguredWalStore | None, config: StreamConfig
    ) -> None:
        self.own = store
        self._falls_back = config.wal_fallback_after_ms > 0
        """Whether the broker may start with its WAL in its own store while the WAL store is
        down.
        """
        self._wal_stores = None if configured is None else WalStores(store, configured)
        self._configured = configured
        self.store = store if self._wal_stores is None else self._wal_stores.store

    @property
    def has_wal_store(self) -> bool:
        return self._configured is not None

    async def probe(self, prefix: str, name: str) -> None:
        """Check that each store supports the operations for which it is used. Raises the errors of
        `probe_store`, and FileSystemUnsuitable.
        """
        await probe_store(self.store, prefix, name)
        if self._configured is None:
            return
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S if self._falls_back else None):
                await probe_wal_store(self._configured.store, prefix, name)
        except (ConditionalWritesIgnored, FileSystemUnsuitable, ListOrderUnsupported):
            raise
        except (ObjectStoreError, TimeoutError) as error:
            if not self._falls_back:
                raise
            log.warning("wal_store_unavailable", url=self._configured.url, error=repr(error))

    async def probe_writes(self, name: str) -> None:
        """Check that the WAL store accepts writes. Raises the store's errors."""
        assert self._configured is not None, "no WAL store is configured"
        await self._configured.store.put(name, b"x")

    def on_batch(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        if self._wal_stores is not None:
            self._wal_stores.follow(listed.store_id for listed in image.nodes.wal_stores())

    async def register(
        self, client: ControllerClient, request: RegisterBroker, *, timeout_s: float
    ) -> BrokerRegistered:
        """Register with the identity of the WAL store, which a controller has written to it.

        In a new cluster, the controller may write the identity only after this broker has tried to
        read it, so the registration is retried once. Raises the errors of the controller and the
        store.
        """
        if self._configured is None:
            return await self._register_without(client, request, timeout_s)
        request = msgspec.structs.replace(request, wal_store_url=self._configured.url)
        try:
            async with asyncio.timeout(IDENTITY_TIMEOUT_S if self._falls_back else None):
                named = await self._with_identity(request, self._configured)
        except (ObjectStoreError, TimeoutError) as error:
            if not self._falls_back:
                raise
            log.warning("wal_store_unavailable", url=self._configured.url, error=repr(error))
            named = msgspec.structs.replace(request, is_wal_store_down=True)
            return await client.register_broker(named, timeout_s=timeout_s)
        try:
            return await client.register_broker(named, timeout_s=timeout_s)
        except RequestRefused:
            again = await self._with_identity(request, self._configured)
            if again == named:
                raise
            return await client.register_broker(again, timeout_s=timeout_s)

    @staticmethod
    async def _register_without(
        client: ControllerClient, request: RegisterBroker, timeout_s: float
    ) -> BrokerRegistered:
        """Register without a WAL store. A cluster that has abandoned its WAL store keeps the
        feature level, so the registration is retried with `is_without_wal_store`.
        """
        try:
            return await client.register_broker(request, timeout_s=timeout_s)
        except RequestRefused as error:
            if error.status is not Status.INVALID_FEATURE_LEVEL:
                raise
            again = msgspec.structs.replace(request, is_without_wal_store=True)
            try:
                return await client.register_broker(again, timeout_s=timeout_s)
            except RequestRefused:
                raise error from None

    @staticmethod
    async def _with_identity(
        request: RegisterBroker, configured: ConfiguredWalStore
    ) -> RegisterBroker:
        found = await identity_of(configured.store)
        if found is None:
            return request
        return msgspec.structs.replace(
            request, wal_store_id=found.store_id, wal_store_uuid=found.uuid
        )
