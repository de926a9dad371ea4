"""Parse store URLs (docs/reference/store-urls.md) and open their stores.

Invariant: a URL is checked completely before anything is opened. Backends are imported on demand.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from penstock.base.slow_calls import slow_calls_of
from penstock.objectstore.config import (
    AzureConfig,
    DirectoryConfig,
    GcsConfig,
    MemoryConfig,
    S3Config,
    StoreConfig,
)
from penstock.objectstore.errors import InvalidStoreUrl
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore, StoreMeter
from penstock.objectstore.own_network import is_loopback
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.prefixed import PrefixedStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.objectstore.url_parameters import PARSERS, redact_url

__all__ = ["SCHEMES", "is_remote", "location", "open_store", "parse_store_url", "redact_url"]

SCHEMES: Final = ("s3", "gs", "az", "file", "memory")
_SIMILAR: Final = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "wasbs": "az",
}


def parse_store_url(url: str) -> StoreConfig:
    """Return the config of a store URL. Raises InvalidStoreUrl with the problem and the allowed
    values.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        similar = _SIMILAR.get(scheme.lower()) if colon else None
        hint = f"; did you mean {similar}://?" if similar else ""
        known = ", ".join(f"{name}:" for name in SCHEMES[:-1])
        raise InvalidStoreUrl(
            redact_url(url), f"it does not begin with {known} or {SCHEMES[-1]}:{hint}"
        )
    if scheme in PARSERS:
        return PARSERS[scheme](url)
    if scheme == "file":
        return _parse_file(url, rest)
    if rest:
        raise InvalidStoreUrl(redact_url(url), "nothing may follow 'memory:'")
    return MemoryConfig()


def is_remote(url: str) -> bool:
    """Return whether a URL refers to a cloud's store, or to a server with the same API."""
    return url.partition(":")[0] in PARSERS


def location(url: str) -> str:
    """Return a store URL without its parameters: s3://BUCKET/PREFIX, file:DIRECTORY or memory:.
    Raises InvalidStoreUrl.
    """
    return parse_store_url(url).redacted().partition("?")[0]


def open_store(
    store: StoreConfig | str,
    *,
    environ: Mapping[str, str] = os.environ,
    meter: StoreMeter | None = None,
) -> ObjectStore:
    """Open the store of a URL or config without sending requests. Cloud stores retry requests; each
    `memory:` URL opens a new store.

    meter: counts each request, including retries. The caller must close the store. Raises
    InvalidStoreUrl, or OSError for a directory that is unusable for another reason.
    """
    config = parse_store_url(store) if isinstance(store, str) else store
    if isinstance(config, MemoryConfig):
        return _metered(MemoryStore(), meter)
    if isinstance(config, DirectoryConfig):
        from penstock.objectstore.directory import DirectoryStore

        try:
            return _metered(DirectoryStore(config.directory), meter)
        except (FileNotFoundError, NotADirectoryError, FileExistsError, PermissionError) as error:
            raise InvalidStoreUrl(
                config.redacted(), f"the directory cannot be created or used: {error.strerror}"
            ) from None
    remote = _metered(_open_remote(config, environ, meter), meter)
    name = config.redacted()
    retrying = RetryingStore(
        remote,
        RetryPolicy(deadline_ms=config.deadline_ms),
        name=name,
        on_slow=slow_calls_of(f"the object store {name}"),
    )
    return PrefixedStore(retrying, config.prefix) if config.prefix else retrying


def _open_remote(
    config: S3Config | GcsConfig | AzureConfig,
    environ: Mapping[str, str],
    meter: StoreMeter | None,
) -> ObjectStore:
    if isinstance(config, GcsConfig):
        from penstock.objectstore.gcs import GcsStore

        return GcsStore(config, environ, meter)
    if isinstance(config, AzureConfig):
        from penstock.objectstore.azure import AzureStore

        return AzureStore(config, environ)
    if config.is_express:
        from penstock.objectstore.s3_express import S3ExpressStore

        return S3ExpressStore(config, meter)
    from penstock.objectstore.s3 import S3Store

    return S3Store(_with_local_defaults(config, environ), meter)


def _metered(store: ObjectStore, meter: StoreMeter | None) -> ObjectStore:
    return store if meter is None else MeteredStore(store, meter)


def _parse_file(url: str, rest: str) -> DirectoryConfig:
    directory = unquote(rest.removeprefix("//"))
    if not directory or (rest.startswith("//") and not directory.startswith("/")):
        raise InvalidStoreUrl(
            redact_url(url),
            "file: must be followed by a directory, as in file:./data or file:///data",
        )
    return DirectoryConfig(directory=directory)


def _with_local_defaults(config: S3Config, environ: Mapping[str, str]) -> S3Config:
    """Return the config with defaults for a store on this machine, such as moto, which accepts any
    credentials. If there were none, botocore would search for them on the network.
    """
    endpoint = config.endpoint
    if endpoint is None:
        return config
    if config.region is None:
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        config = replace(config, region=region)
    configured = config.access_key or environ.get("AWS_ACCESS_KEY_ID") or environ.get("AWS_PROFILE")
    if configured or not is_loopback(endpoint):
        return config
    return replace(config, access_key="local", secret_key="local")  # noqa: S106 (not a secret)
