"""Format and parse the keys of all objects in the bucket. No other module builds or parses keys.

parse(format(x)) == x, and parse returns None for any key that format would not produce, so every
object has exactly one valid key.
"""

import re
from dataclasses import dataclass
from uuid import UUID

from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    ObjectId,
    WalSequence,
    WalStoreId,
)
from penstock.stream.ports import IN_STORE, BrokerIncarnation

WAL_ROOT = "wal/"
WAL_STORE_ROOT = "wals/"
"""Prefix of keys in WAL stores. The cluster refers to the objects of WAL store `id` by keys below
`wals/<id>/`; in the WAL store itself, the keys begin with `wals/` (`stream.wal.wal_store`).
"""
DATA_ROOT = "data/"
META_ROOT = "meta/"
MANIFEST_ROOT = "manifest/"
LEASE_ROOT = "leases/"
SPARK_ROOT = "spark/"
STAGED_ROOT = "staged/"
TABLES_ROOT = "tables/"

_INT64_MAX = (1 << 63) - 1
_WAL_KEY = re.compile(
    r"wal(?:s/([1-9][0-9]{0,8}))?/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,18})/([0-9]{20})"
)
_WAL_STORE_ENTRY = re.compile(
    r"wals/[1-9][0-9]{0,8}/(?:identity|(?:0|[1-9][0-9]{0,9})/(?:0|[1-9][0-9]{0,18})/open)"
)
_DATA_KEY = re.compile(r"data/[0-9a-f]{8}/(0|[1-9][0-9]{0,18})")
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MANIFEST_KEY = re.compile(r"manifest/([A-Za-z0-9_-]{1,64})/([0-9]{20})")
_LEASE_NAME = re.compile(
    r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})-([0-9]{10})"
)
_NINES = 10**20 - 1
_SNAPSHOT_NAME = re.compile(r"([0-9]{20})-([0-9]{20})")
_BACKUP_NAME = re.compile(r"[0-9]{20}")


@dataclass(frozen=True, slots=True)
class WalSlot:
    """One slot of one WAL, as in a WAL key."""

    writer: BrokerIncarnation
    sequence: WalSequence
    wal_store: WalStoreId

    @property
    def key(self) -> str:
        return wal_key(self.writer, self.sequence, self.wal_store)


def wal_root(wal_store: WalStoreId) -> str:
    """Return the prefix of all WALs in one store."""
    return WAL_ROOT if wal_store == IN_STORE else f"{WAL_STORE_ROOT}{wal_store}/"


def wal_prefix(writer: BrokerIncarnation, wal_store: WalStoreId) -> str:
    """Return the prefix of all slots of one WAL. Sequences have 20 digits, so keys sort by slot."""
    return f"{wal_root(wal_store)}{writer.node_id}/{writer.node_epoch}/"


def wal_key(writer: BrokerIncarnation, sequence: WalSequence, wal_store: WalStoreId) -> str:
    return f"{wal_root(wal_store)}{writer.node_id}/{writer.node_epoch}/{sequence:020d}"


def parse_wal_key(key: str) -> WalSlot | None:
    match = _WAL_KEY.fullmatch(key)
    if match is None:
        return None
    wal_store = WalStoreId(int(match[1] or IN_STORE))
    node_id, node_epoch, sequence = int(match[2]), int(match[3]), int(match[4])
    if node_id >= 1 << 31 or node_epoch > _INT64_MAX or sequence > _INT64_MAX:
        return None
    writer = BrokerIncarnation(NodeId(node_id), NodeEpoch(node_epoch))
    return WalSlot(writer, WalSequence(sequence), wal_store)


def is_wal_store_name(name: str) -> bool:
    """Return whether the last segment of a key identifies an identity or a marker."""
    return name in {"identity", "open"}


def wal_marker_key(writer: BrokerIncarnation, wal_store: WalStoreId) -> str:
    """Return the key of the object that proves that this WAL was opened in a WAL store."""
    return f"{wal_prefix(writer, wal_store)}open"


def is_wal_store_entry(key: str) -> bool:
    """Return whether this is the key of an identity or a marker in a WAL store."""
    return _WAL_STORE_ENTRY.fullmatch(key) is not None


def wal_store_identity_key(wal_store: WalStoreId) -> str:
    """Return the key of the object that identifies a WAL store."""
    return f"{wal_root(wal_store)}identity"


def data_key(object_id: ObjectId) -> str:
    """Return the key of a stream-set or stream object. It begins with the reversed lower 32 bits of
    the id, so that consecutive ids are spread over the key partitions of the store: id 0x1a2b is
    data/b2a10000/6699.
    """
    return f"data/{f'{object_id & 0xFFFFFFFF:08x}'[::-1]}/{object_id}"


def parse_data_key(key: str) -> ObjectId | None:
    match = _DATA_KEY.fullmatch(key)
    if match is None:
        return None
    object_id = ObjectId(int(match[1]))
    return object_id if object_id <= _INT64_MAX and data_key(object_id) == key else None


def meta_prefix(cluster_id: str) -> str:
    """Return the prefix of everything that the controller publishes for one cluster.

    Cluster ids are 1 to 64 of [A-Za-z0-9_-]; others raise ValueError.
    """
    return f"{META_ROOT}{_checked(cluster_id)}/"


def snapshot_prefix(cluster_id: str) -> str:
    return f"{meta_prefix(cluster_id)}snapshots/"


def snapshot_key(cluster_id: str, metadata_offset: int, controller_epoch: int) -> str:
    """Return the key of the image snapshot at `metadata_offset` (exclusive). Keys sort
    by offset.
    """
    return f"{snapshot_prefix(cluster_id)}{metadata_offset:020d}-{controller_epoch:020d}"


def parse_snapshot_key(cluster_id: str, key: str) -> tuple[int, int] | None:
    """Return (metadata offset, controller epoch), or None for any other key."""
    prefix = snapshot_prefix(cluster_id)
    match = _SNAPSHOT_NAME.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    return None if match is None else (int(match[1]), int(match[2]))


def backup_prefix(cluster_id: str) -> str:
    return f"{meta_prefix(cluster_id)}log/"


def backup_key(cluster_id: str, first_offset: int) -> str:
    """Return the key of committed metadata records that start at `first_offset`, or of the fence
    that ends a backup there.

    Keys sort by offset.
    """
    return f"{backup_prefix(cluster_id)}{first_offset:020d}"


def parse_backup_key(cluster_id: str, key: str) -> int | None:
    """Return the first metadata offset, or None for any other key."""
    prefix = backup_prefix(cluster_id)
    name = key.removeprefix(prefix) if key.startswith(prefix) else ""
    return int(name) if _BACKUP_NAME.fullmatch(name) else None


def parse_cluster_id(key: str) -> str | None:
    """Return the cluster of a key below `META_ROOT`, or None."""
    root, _, rest = key.partition("/")
    cluster_id, slash, _ = rest.partition("/")
    return (
        cluster_id
        if f"{root}/" == META_ROOT and slash and _CLUSTER_ID.fullmatch(cluster_id)
        else None
    )


def manifest_prefix(cluster_id: str) -> str:
    """Return the key prefix of one cluster's public manifests, which are listed newest first.
    Raises
    ValueError for an invalid cluster id.
    """
    return f"{MANIFEST_ROOT}{_checked(cluster_id)}/"


def manifest_key(cluster_id: str, version: int) -> str:
    """Return the key of a version. Each of its 20 digits is subtracted from 9, so that the first
    key of a LIST is the newest version.
    """
    return f"{manifest_prefix(cluster_id)}{_NINES - version:020d}"


def parse_manifest_key(key: str) -> tuple[str, int] | None:
    """Return (cluster id, version), or None for any other key."""
    match = _MANIFEST_KEY.fullmatch(key)
    if match is None or (version := _NINES - int(match[2])) > _INT64_MAX:
        return None
    return match[1], version


def lease_prefix(cluster_id: str) -> str:
    return f"{LEASE_ROOT}{_checked(cluster_id)}/"


def renewals_prefix(cluster_id: str, lease_id: UUID) -> str:
    """Return the prefix of all renewals of one lease, which sort by serial."""
    return f"{lease_prefix(cluster_id)}{lease_id}-"


def lease_key(cluster_id: str, lease_id: UUID, serial: int) -> str:
    """Return the key of one renewal, which sorts after earlier renewals."""
    return f"{renewals_prefix(cluster_id, lease_id)}{serial:010d}"


def parse_lease_key(cluster_id: str, key: str) -> tuple[UUID, int] | None:
    """Return (lease id, serial), or None for any other key."""
    prefix = lease_prefix(cluster_id)
    match = _LEASE_NAME.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    return None if match is None else (UUID(match[1]), int(match[2]))


def spark_query_prefix(cluster_id: str, query_id: str) -> str:
    """Return the prefix of objects that a Spark streaming query stores outside its checkpoint.

    query_id: validated by `lake.spark.options`.
    """
    return f"{SPARK_ROOT}{_checked(cluster_id)}/{query_id}/"


def staged_prefix(write_id: str, batch_id: int | None = None) -> str:
    """Return the prefix of the staged rows of all batches or of one batch; keys sort by batch.

    write_id: a UUID.
    """
    return (
        f"{STAGED_ROOT}{write_id}/"
        if batch_id is None
        else f"{STAGED_ROOT}{write_id}/{batch_id:020d}/"
    )


def staged_key(write_id: str, batch_id: int, task: int, attempt: UUID, number: int) -> str:
    return f"{staged_prefix(write_id, batch_id)}{task:06d}-{attempt}-{number:06d}"


def table_status_prefix(cluster_id: str) -> str:
    """Return the key prefix of table runner statuses."""
    return f"{TABLES_ROOT}{_checked(cluster_id)}/"


def table_status_key(cluster_id: str, runner: str) -> str:
    """Return the key of the status of one runner. runner: validated by `lake.table.runner`."""
    return f"{table_status_prefix(cluster_id)}{runner}.json"


def _checked(cluster_id: str) -> str:
    if _CLUSTER_ID.fullmatch(cluster_id) is None:
        raise ValueError(
            f"cluster id {cluster_id!r} is invalid: use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'"
        )
    return cluster_id
