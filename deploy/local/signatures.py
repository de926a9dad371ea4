"""Check AWS signatures (version 4) of requests to the S3 server of a secure local cluster.

Only the header `Authorization` is supported, so presigned URLs are rejected. The signature covers
the SHA-256 of the body unless the client omitted it (`UNSIGNED-PAYLOAD`, or chunks). Pure: the
caller passes the time. Source: AWS, "Create a signed AWS API request".
"""

import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final
from urllib.parse import parse_qsl, quote

ACCESS_KEY: Final = "penstock"
SECRET_VARIABLE: Final = "PENSTOCK_LOCAL_STORE_SECRET"  # noqa: S105 - a name
"""Environment variable with the secret key; arguments are visible to all users."""

AGE_MAX: Final = timedelta(minutes=15)
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/, ]+)/(\d{8}/[^/, ]+/s3/aws4_request),"
    r" ?SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})"
)
_NEEDED: Final = {"host", "x-amz-date", "x-amz-content-sha256"}
_UNSIGNED: Final = ("UNSIGNED-PAYLOAD", "STREAMING-")


def is_signed(
    secret: str,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: datetime,
) -> bool:
    """Return whether the request is signed with this secret key.

    target: path and query as the client sent them. headers: by lowercase name.
    """
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None or found[1] != ACCESS_KEY:
        return False
    scope, names, signature = found[2], found[3].split(";"), found[4]
    if not set(names) >= _NEEDED or not headers.keys() >= set(names):
        return False
    date, payload = headers["x-amz-date"], headers["x-amz-content-sha256"]
    if not (_is_recent(date, now) and date.startswith(scope[:8])):
        return False
    if not payload.startswith(_UNSIGNED) and payload != sha256(body).hexdigest():
        return False
    path, _, query = target.partition("?")
    request = "\n".join(
        (
            method,
            path,
            _canonical(query),
            *(f"{name}:{' '.join(headers[name].split())}" for name in names),
            "",
            ";".join(names),
            payload,
        )
    )
    text = "\n".join(
        ("AWS4-HMAC-SHA256", date, scope, sha256(request.encode("latin-1")).hexdigest())
    )
    key = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature)


def _is_recent(date: str, now: datetime) -> bool:
    try:
        at = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(now - at) <= AGE_MAX


def _canonical(query: str) -> str:
    parameters = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(query, keep_blank_values=True)
    )
    return "&".join(f"{name}={value}" for name, value in parameters)
