"""HTTP requests to a schema registry and its identity provider. Redirects are not followed, because
they would reveal credentials to another host, and the size of responses is limited.
"""

import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Any, Final

from penstock.protocol.registry.model import RegistryUrlInvalid

RESPONSE_BYTES_MAX: Final = 1 << 20
REFUSED: Final = frozenset({401, 403})
LATER: Final = frozenset({408, 425, 429})
_CHUNK_BYTES: Final = 64 << 10


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - urllib's
        return None


def opener(tls: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Return an opener. `tls`: None for the CAs of the operating system."""
    return urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=tls))


def split_url(url: str) -> urllib.parse.SplitResult:
    """Split and check the URL of a registry. Raise RegistryUrlInvalid."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and url.isprintable():
            _ = parts.port
            return parts
    except ValueError:
        pass
    raise RegistryUrlInvalid("http://HOST:PORT or https://HOST")


def is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


def is_passing(error: Exception) -> bool:
    """Return whether a failed request may succeed later. It will not after an invalid certificate
    or an invalid response.
    """
    reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLError):
        return False
    return isinstance(error, OSError | HTTPException)


def is_passing_status(code: int) -> bool:
    return code in LATER or code >= 500


def read_response(response: HTTPResponse, deadline: float) -> bytes:
    """Return the body of a response. Raise TimeoutError, ConnectionError if the body ends early, or
    ValueError if it is too long.
    """
    data = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        data += chunk
        if len(data) > RESPONSE_BYTES_MAX:
            raise ValueError(f"the response is longer than {RESPONSE_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the response takes too long")
    if response.length:  # the number of missing bytes
        raise ConnectionError("the connection ended before the response")
    return bytes(data)
