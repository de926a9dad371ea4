"""Recognize servers on this machine (emulators, which accept any credentials) and in a private
network (self-hosted stores, which do not charge per request).
"""

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

_PRIVATE_DOMAINS: Final = frozenset(
    {"localhost", "local", "internal", "lan", "svc", "test", "home.arpa"}
)
"""Domains that do not exist in the public DNS. The names of Kubernetes services end with `svc`."""


def is_loopback(endpoint: str) -> bool:
    """Return whether the host of the URL is this machine."""
    host = urlsplit(endpoint).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(endpoint: str) -> bool:
    """Return whether the server in the URL is in a private network: it has a private address, a
    host name without a domain, or a host name in one of `_PRIVATE_DOMAINS`.
    """
    host = (urlsplit(endpoint).hostname or "").rstrip(".")
    try:
        return ip_address(host).is_private
    except ValueError:
        labels = host.split(".")
        return (len(labels) == 1 and bool(host)) or not _PRIVATE_DOMAINS.isdisjoint(
            {labels[-1], ".".join(labels[-2:])}
        )
