"""A controller without I/O in a cluster with a WAL store, and its janitor."""

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from penstock.base.ids import Millis, WalSequence, WalStoreId
from penstock.controller.active.janitor import Janitor
from penstock.controller.api.messages import Commit, CommitObject, RegisterBroker
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.wal_stores import add_wal_store
from penstock.controller.metadata.features import newest_levels, supported_features
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation, WalStoreIdentity
from penstock.stream.wal.wal_store import WalStores
from tests.support.managers_cluster import CommittedAtOnce, ManagersCluster, registration, slot

FIRST, SECOND = WalStoreId(1), WalStoreId(2)
UUID_A, UUID_B = UUID(int=10), UUID(int=11)
URL, OTHER_URL = "s3://wal", "s3://other"

WITHOUT = {
    "features": supported_features(has_wal_store=False),
    "wal_store_id": IN_STORE,
    "wal_store_uuid": None,
}
"""Fields of a broker whose software or configuration has no WAL store."""
NEW = {"wal_store_id": IN_STORE, "wal_store_uuid": None, "wal_store_url": OTHER_URL}
DOWN = {"wal_store_id": IN_STORE, "wal_store_uuid": None, "is_wal_store_down": True}


def wal_registration(number: int, **changes: Any) -> RegisterBroker:
    """Return the registration of a broker that uses the WAL store."""
    fields = {
        "features": supported_features(has_wal_store=True),
        "wal_store_id": FIRST,
        "wal_store_uuid": UUID_A,
        **changes,
    }
    return registration(number, **fields)


class WalStoreCluster(ManagersCluster):
    """A cluster with WAL store 1."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.apply(newest_levels(has_wal_store=True))
        self.apply(add_wal_store(self.image, self.identity(), URL).records)

    def identity(self, store_id: WalStoreId = FIRST, uuid: UUID = UUID_A) -> WalStoreIdentity:
        return WalStoreIdentity(self.image.cluster_id, store_id, uuid)

    def janitor(
        self,
        stores: WalStores,
        data_dir: Path,
        *,
        runtime: Any = None,
        now_ms: int = 1 << 50,
        **holds: Any,
    ) -> Janitor:
        """Return a janitor that reads the time in seconds from `now_s`."""
        runtime = runtime or CommittedAtOnce(self)
        return Janitor(
            ControllerConfig(data_dir=data_dir),
            runtime,
            runtime,
            stores,
            timeline=self.timeline,
            now=lambda: self.now_s,
            now_ms=lambda: Millis(now_ms),
            **holds,
        )


def slot_in_place(writer: BrokerIncarnation, sequence: int, *ranges: Any) -> CommitObject:
    """Return a slot in the WAL store."""
    key = wal_key(writer, WalSequence(sequence), FIRST)
    return msgspec.structs.replace(slot(writer, sequence, *ranges), key=key)


def placement(
    writer: BrokerIncarnation, first: int, store_id: WalStoreId = IN_STORE, uuid: UUID | None = None
) -> Commit:
    """Return a commit that moves the WAL from slot `first` on."""
    return Commit(
        node_id=writer.node_id,
        node_epoch=writer.node_epoch,
        wal_committed=WalSequence(first),
        moves_wal=True,
        wal_store_id=store_id,
        wal_store_uuid=uuid,
    )
