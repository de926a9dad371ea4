"""Parse the URLs of clouds' stores: the name, the prefix and the parameters.

Invariant: pure, and no error shows a secret. The parameters of a scheme are the fields of its
config.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.objectstore.config import AzureConfig, GcsConfig, RemoteConfig, S3Config
from penstock.objectstore.errors import InvalidKey, InvalidStoreUrl
from penstock.objectstore.keys import check_key

SSE_S3: Final = "AES256"
SSE_KMS: Final = "aws:kms"

_SECRETS: Final = re.compile(
    r"((?:access_key|secret_key|session_token|account_key|sas_token|sig)(?:=|%3D))[^&#]*"
    r"|(//|%2F%2F)[^/@?]*@",
    re.IGNORECASE,
)
_S3_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
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
    """Return a store URL with its secrets replaced. Accepts malformed URLs too."""
    return _SECRETS.sub(lambda found: f"{found[1]}***" if found[1] else f"{found[2]}***@", url)


def parse_s3(url: str) -> S3Config:
    """Return the config of `s3://BUCKET[/PREFIX]?...`. Raises InvalidStoreUrl."""
    shown, parts = redact_url(url), urlsplit(url)
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
    given.setdefault("path_style", "endpoint" in given)
    return S3Config(bucket=parts.netloc, prefix=_prefix(shown, parts.path), **given)


def parse_gcs(url: str) -> GcsConfig:
    """Return the config of `gs://BUCKET[/PREFIX]?...`. Raises InvalidStoreUrl."""
    shown, parts = redact_url(url), urlsplit(url)
    if not _GCS_BUCKET.fullmatch(parts.netloc):
        raise InvalidStoreUrl(
            shown, "what follows gs:// is not a bucket name (3 to 222 of a-z 0-9 . _ -)"
        )
    given = _parameters(shown, parts, GcsConfig, ("bucket",))
    return GcsConfig(bucket=parts.netloc, prefix=_prefix(shown, parts.path), **given)


def parse_azure(url: str) -> AzureConfig:
    """Return the config of `az://ACCOUNT/CONTAINER[/PREFIX]?...`. Raises InvalidStoreUrl."""
    shown, parts = redact_url(url), urlsplit(url)
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
    """Return the checked parameters. names: fields of the config that are no parameters."""
    if parts.fragment:
        raise InvalidStoreUrl(shown, "'#' must be written as %23")
    allowed = [item.name for item in fields(config) if item.name not in {"prefix", *names}]
    # The order of the reference: what names the store first, the limits last.
    allowed.sort(key=lambda name: (name in _COUNTS, name != "endpoint"))
    found: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
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
    if name == "endpoint" and not _is_http_url(value):
        raise InvalidStoreUrl(
            shown,
            "endpoint must be an http or https URL without credentials, as in http://127.0.0.1:9000",
        )
    return value


def _check_encryption(shown: str, given: Mapping[str, Any]) -> None:
    sse = given.get("sse")
    if sse not in {None, SSE_S3, SSE_KMS}:
        raise InvalidStoreUrl(shown, f"sse must be {SSE_S3} (SSE-S3) or {SSE_KMS} (SSE-KMS)")
    for name in ("sse_kms_key_id", "sse_bucket_key"):
        if name in given and sse != SSE_KMS:
            raise InvalidStoreUrl(shown, f"{name} needs sse={SSE_KMS}")


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


PARSERS: Final[Mapping[str, Callable[[str], S3Config | GcsConfig | AzureConfig]]] = {
    "s3": parse_s3,
    "gs": parse_gcs,
    "az": parse_azure,
}
