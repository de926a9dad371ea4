"""Check the URL of a WAL store and open it. Stores without the guarantees that recovery relies on
must be rejected: see docs/design/wal-store.md.
"""

import os
from collections.abc import Mapping
from os import environ as process_environ

from penstock.objectstore.config import (
    AzureConfig,
    DirectoryConfig,
    GcsConfig,
    MemoryConfig,
    RemoteConfig,
    S3Config,
    StoreConfig,
)
from penstock.objectstore.errors import InvalidStoreUrl
from penstock.objectstore.metered import MeteredStore, StoreMeter
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.url import location, open_store, parse_store_url, redact_url
from penstock.stream.format.keys import is_wal_store_name
from penstock.stream.wal.wal_store import ConfiguredWalStore, WalStores


def check_wal_store_url(url: str, store_url: str = "") -> None:
    """Raise InvalidStoreUrl if the WAL store of a cluster cannot be at this URL. store_url: the URL
    of the cluster's own store, if known.
    """
    config = parse_store_url(url)
    if isinstance(config, MemoryConfig):
        raise _refused(url, "memory: is a separate store in each process")
    if store_url and _overlap(config, parse_store_url(store_url)):
        raise _refused(
            url,
            f"it overlaps with the store {redact_url(store_url)}: use another bucket, or prefixes"
            " (or directories) of which neither contains the other",
        )


def open_wal_store(
    url: str,
    store_url: str = "",
    *,
    meter: StoreMeter | None = None,
    calls: StoreMeter | None = None,
    environ: Mapping[str, str] = process_environ,
) -> ConfiguredWalStore | None:
    """Open the WAL store at a URL, or return None if the URL is empty. Sends no requests. meter:
    counts its requests. calls: counts its calls, each including all retries. Raises
    InvalidStoreUrl.
    """
    if not url:
        return None
    check_wal_store_url(url, store_url)
    store = open_backend(url, meter=meter, environ=environ)
    return ConfiguredWalStore(store if calls is None else MeteredStore(store, calls), location(url))


def open_backend(
    url: str,
    *,
    meter: StoreMeter | None = None,
    environ: Mapping[str, str] = process_environ,
) -> ObjectStore:
    """Open the store at a WAL store URL that has already been checked. Sends no requests. Raises
    InvalidStoreUrl.
    """
    config = parse_store_url(url)
    if not isinstance(config, DirectoryConfig):
        return open_store(config, meter=meter, environ=environ)
    from penstock.objectstore.shared_directory import SharedDirectoryStore

    store = SharedDirectoryStore(config.directory, creates_folder=creates_folder)
    return store if meter is None else MeteredStore(store, meter)


def creates_folder(key: str) -> bool:
    """Return whether a PUT of this key may create folders, which is the case for the identity, for
    markers and for startup probes. The folder of a slot is missing only if the file system is not
    mounted or the WAL has ended, the folder of a health check only if the file system is not
    mounted.
    """
    return is_wal_store_name(key.rpartition("/")[2]) or "/probe-" in key


def open_stores(store_url: str, wal_store_url: str) -> WalStores:
    """Open the store of a cluster together with its WAL store, for tools. Raises InvalidStoreUrl,
    or OSError for a directory.
    """
    wal_store = open_wal_store(wal_store_url, store_url)
    return WalStores(open_store(store_url), wal_store)


def open_for_reads(store_url: str, wal_store_url: str) -> WalStores:
    """Open both stores to read slices that were planned by a view that has checked the identity.
    Raises the errors of `open_stores`.
    """
    stores = open_stores(store_url, wal_store_url)
    stores.follow_any()
    return stores


def _refused(url: str, reason: str) -> InvalidStoreUrl:
    return InvalidStoreUrl(redact_url(url), f"it cannot be a WAL store: {reason}")


def _overlap(one: StoreConfig, other: StoreConfig) -> bool:
    if isinstance(one, DirectoryConfig) and isinstance(other, DirectoryConfig):
        paths = [os.path.abspath(config.directory) for config in (one, other)]
        return os.path.commonpath(paths) in paths
    if not (isinstance(one, RemoteConfig) and isinstance(other, RemoteConfig)):
        return False
    return _bucket_of(one) == _bucket_of(other) and (
        one.prefix.startswith(other.prefix) or other.prefix.startswith(one.prefix)
    )


def _bucket_of(config: RemoteConfig) -> tuple[object, ...]:
    if isinstance(config, AzureConfig):
        return "az", config.account, config.container
    assert isinstance(config, S3Config | GcsConfig), f"{config} has no bucket"
    return type(config), config.endpoint, config.bucket
