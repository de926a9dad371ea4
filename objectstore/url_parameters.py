"""Parse s3, gs and az URLs: the name, the prefix and the parameters.

Invariant: pure. Errors contain only the values of parameters in `_PUBLIC`, because other values may
be secret, or contain a secret after a misspelled name or a wrong separator. Parameters are the
fields of the config.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.objectstore.config import (
    S3_EXPRESS_BUCKET,
    AzureConfig,
    GcsConfig,
    RemoteConfig,
    S3Config,
)
from penstock.objectstore.errors import InvalidKey, InvalidStoreUrl
from penstock.objectstore.keys import check_key

SSE_S3: Final = "AES256"
SSE_KMS: Final = "aws:kms"

_PUBLIC: Final = frozenset(
    {
        "endpoint",
        "region",
        "path_style",
        "sse",
        "sse_kms_key_id",
        "sse_bucket_key",
        "credentials_file",
        "connections_max",
        "connect_timeout_ms",
        "read_timeout_ms",
        "deadline_ms",
    }
)
"""Parameters whose values may be shown in errors."""
_PARAMETER_NAME: Final = re.compile(r"[A-Za-z]+(?:[_.-][A-Za-z]+)*")
_NAME_LENGTH_MAX: Final = 32
_HIDDEN: Final = "***"
_USER: Final = re.compile(r"(//|%2F%2F)(?:[^/?#]*:.*|[^/?#]*)@", re.IGNORECASE | re.DOTALL)
_AFTER_ENDPOINT: Final = re.compile(r"(\?|%3F|#|%23|;|%3B).*", re.IGNORECASE | re.DOTALL)
_SEPARATOR: Final = re.compile(r"[?&#;=]|%(?:3F|26|23|3B|3D)", re.IGNORECASE)
_REGION: Final = re.compile(r"[A-Za-z0-9_.-]+")
_S3_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_S3_EXPRESS_SUFFIX: Final = "--x-s3"
_NOT_OF_S3_EXPRESS: Final = ("endpoint", "path_style", "sse", "sse_kms_key_id", "sse_bucket_key")
_GCS_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._\-]{1,220}[a-z0-9]")
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER: Final = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_COUNTS: Final = {
    "connections_max": (1, 1_024),
    "connect_timeout_ms": (1, 60_000),
    "read_timeout_ms": (1, 600_000),
    "deadline_ms": (1, 3_600_000),
}
_FLAGS: Final = {"true": True, "false": False}
_FLAG_PARAMETERS: Final = frozenset({"path_style", "sse_bucket_key"})
_OTHER_CLOUDS: Final = (
    ("storage.googleapis.com", "gs://BUCKET"),
    ("blob.core.windows.net", "az://ACCOUNT/CONTAINER"),
)
_SAS_PARAMETERS: Final = frozenset({"sv", "se", "sp", "sr", "ss", "srt", "st", "spr", "sip", "sig"})


def redact_url(url: str) -> str:
    """Return a store URL without possible secrets. Also accepts malformed URLs."""
    location, mark, query = url.partition("?")
    if url.startswith("file:") and "=" not in query:
        return url  # the name of the directory contains a question mark
    location, hash_mark, _ = location.partition("#")
    shown = _USER.sub(rf"\g<1>{_HIDDEN}@", location)
    if hash_mark:
        return f"{shown}#{_HIDDEN}"
    return shown + mark + "&".join(map(_shown, query.split("&"))) if mark else shown


def _shown(parameter: str) -> str:
    name, mark, value = parameter.partition("=")
    if not parameter:
        return ""
    if not (mark and _is_name(name)):
        return _HIDDEN
    if name == "endpoint":
        value = _USER.sub(rf"\g<1>{_HIDDEN}@", _AFTER_ENDPOINT.sub(rf"\g<1>{_HIDDEN}", value))
    elif name not in _PUBLIC or _SEPARATOR.search(value):
        value = _HIDDEN
    return f"{name}={value}"


def _is_name(text: str) -> bool:
    """Return whether this may be a parameter name rather than a part of a key or token."""
    return len(text) <= _NAME_LENGTH_MAX and _PARAMETER_NAME.fullmatch(text) is not None


def _split(url: str) -> tuple[str, SplitResult]:
    """Return the URL for errors, and its parts."""
    shown = redact_url(url)
    try:
        return shown, urlsplit(url)
    except ValueError:
        raise InvalidStoreUrl(shown, "its first part is not a name") from None


def parse_s3(url: str) -> S3Config:
    """Return the config of `s3://BUCKET[/PREFIX]?...`. Raises InvalidStoreUrl."""
    shown, parts = _split(url)
    if not _S3_BUCKET.fullmatch(parts.netloc):
        raise InvalidStoreUrl(
            shown, "what follows s3:// is not a bucket name (3 to 63 of a-z 0-9 . -)"
        )
    given = _parameters(shown, parts, S3Config, ("bucket",))
    for host, form in _OTHER_CLOUDS:
        if (urlsplit(str(given.get("endpoint", ""))).hostname or "").endswith(host):
            raise InvalidStoreUrl(
                shown, f"{host} has no conditional writes with the API of S3; write {form}"
            )
    if ("access_key" in given) != ("secret_key" in given):
        raise InvalidStoreUrl(shown, "access_key and secret_key must be given together")
    _check_encryption(shown, given)
    if parts.netloc.endswith(_S3_EXPRESS_SUFFIX):
        _check_express(shown, parts.netloc, given)
    given.setdefault("path_style", "endpoint" in given)
    return S3Config(bucket=parts.netloc, prefix=_prefix(shown, parts.path), **given)


def parse_gcs(url: str) -> GcsConfig:
    """Return the config of `gs://BUCKET[/PREFIX]?...`. Raises InvalidStoreUrl."""
    shown, parts = _split(url)
    if not _GCS_BUCKET.fullmatch(parts.netloc):
        raise InvalidStoreUrl(
            shown, "what follows gs:// is not a bucket name (3 to 222 of a-z 0-9 . _ -)"
        )
    given = _parameters(shown, parts, GcsConfig, ("bucket",))
    return GcsConfig(bucket=parts.netloc, prefix=_prefix(shown, parts.path), **given)


def parse_azure(url: str) -> AzureConfig:
    """Return the config of `az://ACCOUNT/CONTAINER[/PREFIX]?...`. Raises InvalidStoreUrl."""
    shown, parts = _split(url)
    container, _, rest = parts.path.removeprefix("/").partition("/")
    account = parts.netloc.removesuffix(".blob.core.windows.net")
    if not _ACCOUNT.fullmatch(account):
        raise InvalidStoreUrl(
            shown, "what follows az:// is not the name of a storage account (3 to 24 of a-z 0-9)"
        )
    if not _CONTAINER.fullmatch(container):
        raise InvalidStoreUrl(
            shown,
            f"what follows az://{account}/ is not the name of a container (3 to 63 of a-z 0-9 -);"
            " write az://ACCOUNT/CONTAINER",
        )
    given = _parameters(shown, parts, AzureConfig, ("account", "container"))
    if "account_key" in given and "sas_token" in given:
        raise InvalidStoreUrl(shown, "account_key and sas_token cannot be given together")
    return AzureConfig(account=account, container=container, prefix=_prefix(shown, rest), **given)


def _prefix(shown: str, path: str) -> str:
    prefix = unquote(path).strip("/")
    if not prefix:
        return ""
    try:
        check_key(prefix)
    except InvalidKey as error:
        raise InvalidStoreUrl(shown, str(error)) from None
    return prefix + "/"


def _parameters(
    shown: str, parts: SplitResult, config: type[RemoteConfig], names: Sequence[str]
) -> dict[str, Any]:
    """Return the checked parameters. names: fields of the config that are not parameters."""
    if parts.fragment:
        raise InvalidStoreUrl(shown, "'#' must be written as %23")
    allowed = [item.name for item in fields(config) if item.name not in {"prefix", *names}]
    # Sort parameters as on the reference page.
    allowed.sort(key=lambda name: (name in _COUNTS, name != "endpoint"))
    found: dict[str, Any] = {}
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    if not all("=" in pair for pair in parts.query.split("&") if pair) or not all(
        _is_name(name) for name, _ in pairs
    ):
        raise InvalidStoreUrl(
            shown,
            "a parameter is not of the form NAME=VALUE; in values, & must be written as %26 and %"
            " as %25",
        )
    for name, value in pairs:
        if name in found:
            raise InvalidStoreUrl(shown, f"{name} is given twice")
        found[name] = _parameter(shown, name, value, allowed)
    return found


def _parameter(shown: str, name: str, value: str, allowed: Sequence[str]) -> str | int | bool:
    if name in _SAS_PARAMETERS and "sas_token" in allowed:
        raise InvalidStoreUrl(
            shown,
            "write the SAS token as the value of sas_token, with each & as %26 and each % as %25,"
            " or set AZURE_STORAGE_SAS_TOKEN",
        )
    if name not in allowed:
        near = get_close_matches(name, allowed, n=1)
        hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}"
        raise InvalidStoreUrl(shown, f"unknown parameter {name!r}; {hint}")
    if name in _COUNTS:
        low, high = _COUNTS[name]
        if not (value.isascii() and value.isdigit() and low <= int(value[:10]) <= high):
            raise InvalidStoreUrl(shown, f"{name} must be a number from {low} to {high}")
        return int(value)
    if name in _FLAG_PARAMETERS:
        if value not in _FLAGS:
            raise InvalidStoreUrl(shown, f"{name} must be true or false")
        return _FLAGS[value]
    if not value:
        raise InvalidStoreUrl(shown, f"{name} is empty")
    if name == "region" and not _REGION.fullmatch(value):
        raise InvalidStoreUrl(shown, "region must be a name of a-z A-Z 0-9 _ . -")
    if name == "endpoint" and not _is_http_url(value):
        raise InvalidStoreUrl(
            shown,
            "endpoint must be an http or https URL without credentials and parameters, as in"
            " http://127.0.0.1:9000",
        )
    return value


def _check_encryption(shown: str, given: Mapping[str, Any]) -> None:
    sse = given.get("sse")
    if sse not in {None, SSE_S3, SSE_KMS}:
        raise InvalidStoreUrl(shown, f"sse must be {SSE_S3} (SSE-S3) or {SSE_KMS} (SSE-KMS)")
    for name in ("sse_kms_key_id", "sse_bucket_key"):
        if name in given and sse != SSE_KMS:
            raise InvalidStoreUrl(shown, f"{name} needs sse={SSE_KMS}")


def _check_express(shown: str, bucket: str, given: Mapping[str, Any]) -> None:
    if not S3_EXPRESS_BUCKET.fullmatch(bucket):
        raise InvalidStoreUrl(
            shown,
            "the name of a directory bucket has the form NAME--ZONE--x-s3, as in"
            " wals--use1-az4--x-s3",
        )
    for name in _NOT_OF_S3_EXPRESS:
        if name in given:
            reason = (
                "S3 encrypts its objects as the bucket says"
                if name.startswith("sse")
                else "its address follows from its name and the region"
            )
            raise InvalidStoreUrl(shown, f"{name} is not possible for a directory bucket: {reason}")


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.username is None
            and not (parts.query or parts.fragment)
            and parts.port != 0
        )
    except ValueError:
        return False


PARSERS: Final[Mapping[str, Callable[[str], S3Config | GcsConfig | AzureConfig]]] = {
    "s3": parse_s3,
    "gs": parse_gcs,
    "az": parse_azure,
}
