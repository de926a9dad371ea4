"""Register the configured WAL store: create its identity object and add the store to the metadata.
Either step may already have been done by another controller or an earlier run.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

import structlog

from penstock.base.errors import StreamError
from penstock.controller.active.writer import Runtime
from penstock.controller.api.messages import Status
from penstock.controller.managers.result import Refused
from penstock.controller.managers.wal_stores import add_wal_store, check_new, next_store_id
from penstock.controller.metadata.features import WAL_STORE_VERSION
from penstock.controller.metadata.image import MetadataImage
from penstock.objectstore.errors import ObjectStoreError
from penstock.stream.ports import WalStoreIdentity
from penstock.stream.wal.wal_store import (
    WalStores,
    create_identity,
    foreign_key,
    identity_of,
    is_readable,
)

_log = structlog.get_logger(__name__)

_RETRY_S: Final = 10.0
_FIRST_TRY_S: Final = 5.0
"""Maximum delay before a new leader serves, because an unavailable WAL store must not stop the
cluster.
"""


async def why_not_lost(wal_stores: WalStores, wal_store: WalStoreIdentity) -> str:
    """Return the reason why the WAL store is not considered lost, or "" if it is. It is lost if
    this process is configured with a WAL store, and several attempts to read the identity fail.
    """
    if wal_stores.configured is None:
        return (
            f"the active controller cannot check whether WAL store {wal_store.store_id} is lost:"
            " set wal.store on all controllers to the URL that it had, and restart them"
        )
    if await is_readable(wal_stores.store, wal_store):
        return (
            f"WAL store {wal_store.store_id} is not lost: the active controller reads its"
            " identity. Recovery continues once brokers reach it, too; penstock wal repair"
            " accepts the loss of single slots"
        )
    return ""


class WalStoreRegistrar:
    """Adds the configured WAL store to the metadata after `wal.store.version` was upgraded.

    The identity object is written first. A broker that does not find it is rejected, because it
    uses another store, such as a directory that is not shared.
    """

    def __init__(
        self,
        runtime: Runtime,
        wal_stores: WalStores,
        cluster_id: str,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._runtime = runtime
        self._wal_stores = wal_stores
        self._cluster_id = cluster_id
        self._new_uuid = new_uuid

    async def try_first(self) -> None:
        """Try to register once, for a short time. If the metadata already lists a WAL store, `run`
        checks it.
        """
        if await self._runtime.with_committed_image(_lists_wal_store):
            return
        try:
            async with asyncio.timeout(_FIRST_TRY_S):
                await self._register()
        except (ObjectStoreError, StreamError, TimeoutError) as error:
            _log.warning("wal_store_not_registered", error=str(error))

    async def run(self) -> None:
        """Retry until the store is registered."""
        while True:
            try:
                if await self._register():
                    return
            except (ObjectStoreError, StreamError, TimeoutError) as error:
                _log.warning("wal_store_not_registered", error=str(error))
            await asyncio.sleep(_RETRY_S)

    async def _register(self) -> bool:
        """Return whether nothing is left to do, because the configured store is in use or has
        ended.
        """
        configured = self._wal_stores.configured
        assert configured is not None, "no WAL store is configured"
        level, needed, store_id, ended = await self._runtime.with_committed_image(
            lambda image: (
                image.features.level(WAL_STORE_VERSION),
                image.nodes.needed_wal_store,
                next_store_id(image),
                [store.url for store in image.nodes.ended_wal_stores()],
            )
        )
        if not level:
            return False
        if needed is None and configured.url in ended:
            error = "it was abandoned or drained: configure another one, or none"
            _log.error("wal_store_wrong", url=configured.url, error=error)
            return True
        if needed is not None:
            # Do not create an identity, because that would make an empty store look like the right
            # one.
            found = await identity_of(configured.store)
            if found is None:
                _log.error("wal_store_wrong", url=configured.url, error="it has no identity object")
                return False
        else:
            try:
                await self._runtime.with_committed_image(
                    lambda image: check_new(image, configured.url)
                )
            except Refused as refused:
                _log.error("wal_store_wrong", url=configured.url, error=refused.detail)
                return False
            # This cluster does not have a WAL in the store yet, so it could reuse the keys of an
            # earlier cluster.
            if (key := await foreign_key(configured.store)) is not None:
                error = f"it contains {key!r} of an earlier cluster: use an empty prefix"
                _log.error("wal_store_not_empty", url=configured.url, error=error)
                return False
            wanted = WalStoreIdentity(self._cluster_id, store_id, self._new_uuid())
            found = await create_identity(configured.store, wanted)
        reply = await self._runtime.submit(
            "AddWalStore", lambda image, _: add_wal_store(image, found, configured.url)
        )
        if reply.status is not Status.OK:
            _log.error("wal_store_wrong", url=configured.url, error=reply.detail)
            return False
        await self._runtime.with_committed_image(self._follow)
        return True

    def _follow(self, image: MetadataImage) -> None:
        self._wal_stores.follow(store.store_id for store in image.nodes.wal_stores())


def _lists_wal_store(image: MetadataImage) -> bool:
    return image.nodes.needed_wal_store is not None
