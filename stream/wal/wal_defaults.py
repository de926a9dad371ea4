"""Stream setting defaults that depend on the store that contains the WALs. Pure: nothing is
opened.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.objectstore.config import (
    DirectoryConfig,
    MemoryConfig,
    RemoteConfig,
    S3Config,
    StoreConfig,
)
from penstock.objectstore.own_network import is_private


class WalDefaults(NamedTuple):
    """values: defaults by field of StreamConfig. where: a description of the stores that they apply
    to.
    """

    values: Mapping[str, int]
    where: str


LOCAL_STORE: Final = WalDefaults(
    MappingProxyType(
        {
            "wal_linger_ms": 5,
            "wal_put_interval_ms": 0,
            "batching_bytes_per_s": 1 << 40,
            "wal_hedge_factor": 0,
        }
    ),
    "over memory and files",
)
"""For memory and directory stores: regardless of the write rate, bulks wait only for the PUT in
flight, and slow PUTs are not hedged, because PUTs are free and their latency has no long tail.
"""
CHEAP_WAL_STORE: Final = WalDefaults(
    MappingProxyType({"wal_linger_ms": 0, "wal_linger_idle_ms": 0, "wal_put_interval_ms": 0}),
    "for a WAL store with cheap requests",
)
"""For a `wal.store` with free or cheap requests, where bulks do not wait for more records."""
CHARGED: Final = WalDefaults(MappingProxyType({}), "")


def wal_defaults(store: StoreConfig, wal_store: StoreConfig | None) -> WalDefaults:
    """Return the defaults of brokers with these stores. wal_store: None if the WALs are in
    `store`.
    """
    if wal_store is None:
        return LOCAL_STORE if isinstance(store, DirectoryConfig | MemoryConfig) else CHARGED
    return CHEAP_WAL_STORE if _is_cheap(wal_store) else CHARGED


def _is_cheap(config: StoreConfig) -> bool:
    """Return whether requests are known to be cheap: S3 Express charges a quarter of S3 Standard,
    and a file system or a server in a private network charges nothing. For other buckets, the
    storage class cannot be derived from the URL.
    """
    if not isinstance(config, RemoteConfig):
        return True
    if isinstance(config, S3Config) and config.is_express:
        return True
    return config.endpoint is not None and is_private(config.endpoint)
