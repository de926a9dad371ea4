"""Parse store URLs and open the stores that they name.

    s3://BUCKET[/PREFIX]?endpoint=URL&region=NAME&access_key=...&secret_key=...
    s3://BUCKET?sse=aws:kms&sse_kms_key_id=ARN&sse_bucket_key=true
    file:DIRECTORY
    memory:

Invariant: a URL is checked completely before anything is opened, and no error or log shows its
secrets.
Must not import a backend before it is needed.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.objectstore.config import DirectoryConfig, MemoryConfig, S3Config, StoreConfig
from penstock.objectstore.errors import InvalidKey, InvalidStoreUrl
from penstock.objectstore.keys import check_key
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore, StoreMeter
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.prefixed import PrefixedStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy

_SECRETS: Final = re.compile(
    r"((?:access_key|secret_key|session_token)=)[^&#]*|(//|%2F%2F)[^/@?]*@", re.IGNORECASE
)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_TEXT_PARAMETERS: Final = frozenset(
    {"endpoint", "region", "access_key", "secret_key", "session_token", "sse", "sse_kms_key_id"}
)
_COUNT_PARAMETERS: Final = {
    "connections_max": (1, 1_024),
    "connect_timeout_ms": (1, 60_000),
    "read_timeout_ms": (1, 600_000),
    "deadline_ms": (1, 3_600_000),
}
_FLAGS: Final = {"true": True, "false": False}
_FLAG_PARAMETERS: Final = frozenset({"path_style", "sse_bucket_key"})
SSE_S3: Final = "AES256"
SSE_KMS: Final = "aws:kms"
S3_PARAMETERS: Final = tuple(
    field.name for field in fields(S3Config) if field.name not in {"bucket", "prefix"}
)
"""The parameters of an s3 URL."""


def redact_url(url: str) -> str:
    """Return a store URL with its secrets replaced. Accepts malformed URLs too."""
    return _SECRETS.sub(lambda found: f"{found[1]}***" if found[1] else f"{found[2]}***@", url)


def parse_store_url(url: str) -> StoreConfig:
    """Return the config of a store URL. Raises InvalidStoreUrl, which names the problem and the
    allowed values.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in {"s3", "file", "memory"}:
        raise InvalidStoreUrl(redact_url(url), "it does not begin with s3:, file: or memory:")
    if scheme == "s3":
        return _parse_s3(url)
    if scheme == "file":
        return _parse_file(url, rest)
    if rest:
        raise InvalidStoreUrl(redact_url(url), "nothing may follow memory:")
    return MemoryConfig()


def location(url: str) -> str:
    """Return what a store URL names, without its parameters: s3://BUCKET/PREFIX, file:DIRECTORY or
    memory:. Raises InvalidStoreUrl.
    """
    return parse_store_url(url).redacted().partition("?")[0]


def open_store(
    store: StoreConfig | str,
    *,
    environ: Mapping[str, str] = os.environ,
    meter: StoreMeter | None = None,
) -> ObjectStore:
    """Open the store of a URL or config without sending anything. S3 stores retry; each `memory:`
    is a new store.

    meter: counts each request, including retries. Close the store when done. Raises
    InvalidStoreUrl, or OSError for a directory that cannot be created.
    """
    config = parse_store_url(store) if isinstance(store, str) else store
    if isinstance(config, MemoryConfig):
        return _metered(MemoryStore(), meter)
    if isinstance(config, DirectoryConfig):
        from penstock.objectstore.directory import DirectoryStore

        return _metered(DirectoryStore(config.directory), meter)
    from penstock.objectstore.s3 import S3Store

    s3 = _metered(S3Store(_with_local_defaults(config, environ), meter), meter)
    retrying = RetryingStore(s3, RetryPolicy(deadline_ms=config.deadline_ms))
    return PrefixedStore(retrying, config.prefix) if config.prefix else retrying


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


def _parse_s3(url: str) -> S3Config:
    shown = redact_url(url)
    parts = urlsplit(url)
    if not _BUCKET.fullmatch(parts.netloc):
        raise InvalidStoreUrl(
            shown, "what follows s3:// is not a bucket name (3 to 63 of a-z 0-9 . -)"
        )
    if parts.fragment:
        raise InvalidStoreUrl(shown, "'#' must be written as %23")
    prefix = unquote(parts.path).strip("/")
    if prefix:
        try:
            check_key(prefix)
        except InvalidKey as error:
            raise InvalidStoreUrl(shown, str(error)) from None
        prefix += "/"
    parameters: dict[str, Any] = {"path_style": "endpoint=" in parts.query}
    given: set[str] = set()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in given:
            raise InvalidStoreUrl(shown, f"{name} is given twice")
        given.add(name)
        parameters[name] = _parameter(shown, name, value)
    if ("access_key" in parameters) != ("secret_key" in parameters):
        raise InvalidStoreUrl(shown, "access_key and secret_key must be given together")
    _check_encryption(shown, parameters)
    return S3Config(bucket=parts.netloc, prefix=prefix, **parameters)


def _check_encryption(shown: str, parameters: Mapping[str, Any]) -> None:
    sse = parameters.get("sse")
    if sse not in {None, SSE_S3, SSE_KMS}:
        raise InvalidStoreUrl(shown, f"sse must be {SSE_S3} (SSE-S3) or {SSE_KMS} (SSE-KMS)")
    for name in ("sse_kms_key_id", "sse_bucket_key"):
        if name in parameters and sse != SSE_KMS:
            raise InvalidStoreUrl(shown, f"{name} needs sse={SSE_KMS}")


def _parameter(shown: str, name: str, value: str) -> str | int | bool:
    if name in _COUNT_PARAMETERS:
        low, high = _COUNT_PARAMETERS[name]
        if not (value.isascii() and value.isdigit() and low <= int(value[:10]) <= high):
            raise InvalidStoreUrl(shown, f"{name} must be a number from {low} to {high}")
        return int(value)
    if name in _FLAG_PARAMETERS:
        if value not in _FLAGS:
            raise InvalidStoreUrl(shown, f"{name} must be true or false")
        return _FLAGS[value]
    if name not in _TEXT_PARAMETERS:
        near = get_close_matches(name, S3_PARAMETERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(S3_PARAMETERS)}"
        raise InvalidStoreUrl(shown, f"unknown parameter {name!r}; {hint}")
    if not value:
        raise InvalidStoreUrl(shown, f"{name} is empty")
    if name == "endpoint" and not _is_http_url(value):
        raise InvalidStoreUrl(
            shown,
            "endpoint must be an http or https URL without credentials, as in http://127.0.0.1:9000",
        )
    return value


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.username is None
            and parts.port != 0
        )
    except ValueError:
        return False


def _with_local_defaults(config: S3Config, environ: Mapping[str, str]) -> S3Config:
    """Return the config with defaults for a store on this machine (moto).

    It accepts any credentials. Without any, botocore would search the network for them.
    """
    endpoint = config.endpoint
    if endpoint is None:
        return config
    if config.region is None:
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        config = replace(config, region=region)
    configured = config.access_key or environ.get("AWS_ACCESS_KEY_ID") or environ.get("AWS_PROFILE")
    if configured or not _is_loopback(endpoint):
        return config
    return replace(config, access_key="local", secret_key="local")  # noqa: S106 (not a secret)


def _is_loopback(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
