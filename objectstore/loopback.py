"""Recognize servers on this machine: emulators, which accept any credentials."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(endpoint: str) -> bool:
    """Return whether the URL names this machine."""
    host = urlsplit(endpoint).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
