"""Decide which requests the console accepts, and set the response headers.

Protects against DNS rebinding, CSRF, embedding in other sites, and scripts in names chosen by
clients of the cluster. Invariant: pure.
"""

from collections.abc import Collection, Mapping
from hmac import compare_digest
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

BODY_BYTES_MAX: Final = 64 << 10
"""Maximum size of a form; larger ones are rejected."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every response."""


def is_known_host(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header is an address, `localhost` or one of the console's names.
    Addresses cannot be rebound.
    """
    name = _host_of(host)
    if name == "localhost" or name in {item.lower() for item in names}:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a form was sent from a page of this console. Browsers send Origin with every
    POST.
    """
    origin = headers.get("origin", "")
    fetched = headers.get("sec-fetch-site", "same-origin")
    return fetched == "same-origin" and bool(origin) and _netloc_of(origin) == headers["host"]


def is_token(given: str, expected: str) -> bool:
    """Compare a token with the expected one in constant time."""
    return compare_digest(given.encode(), expected.encode())


def _netloc_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
