"""Adapt the HTTP session of the S3 client in three places.

Invariant: a request is sent at most once. aiohttp repeats a PUT by itself when a kept-alive
connection breaks; if the first one was applied, the second one of an `If-None-Match` write gets 412
and the caller would conclude that it is fenced. Large bodies are written as slices of the caller's
memory: the default copies a body and sends it in parts of 64 KiB with one iteration of the event
loop each. `Expect: 100-continue` is dropped: it costs every PUT a round trip, and aiohttp waits for
the 100 without any timeout.
Must not keep state of its own. Source: aiohttp.ClientSession._request, RFC 9110 9.2.2.
"""

from io import BytesIO
from typing import Any, Final, cast

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

WRITE_CHUNK_BYTES: Final = 256 * 1024
"""Size of one write to the socket. A smaller one costs more iterations of the event loop; a larger
one occupies the loop longer and is buffered by copying.
"""


class SlicedBody(Payload):
    """A body that is written as slices of the wrapped `bytes`, without a copy. It may be written
    again.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body, content_type=None)
        self._size = len(body)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all of it, and wait for the socket between slices."""
        view = memoryview(cast("bytes", self._value))
        for start in range(0, len(view), WRITE_CHUNK_BYTES):
            await writer.write(view[start : start + WRITE_CHUNK_BYTES])

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Decode the body, for aiohttp's debug output only."""
        return cast("bytes", self._value).decode(encoding, errors)


class SendOnceSession(AIOHTTPSession):
    """Send requests without hidden retries and without copies of large bodies.

    Requests are botocore's AWSPreparedRequest and sessions aiohttp's ClientSession, unlike in the
    published stubs.
    """

    async def send(self, request: Any) -> Any:  # noqa: ANN401 (wrong stubs)
        """Send one request and return when the head of the response has arrived."""
        request.headers.pop("Expect", None)  # not part of the signature; see the module's docstring
        body = request.body
        if isinstance(body, BytesIO):
            # botocore wraps bodies. The value is its `bytes`, which aiohttp would copy.
            body = body.getvalue()
        if isinstance(body, bytes) and len(body) > WRITE_CHUNK_BYTES:
            request.body = SlicedBody(body)
        return await super().send(request)

    async def _get_session(self, proxy_url: str | None) -> Any:  # noqa: ANN401 (absent from the stubs)
        base: Any = super()
        session = await base._get_session(proxy_url)
        assert hasattr(session, "_retry_connection"), (
            "aiohttp renamed the switch that stops it from repeating a PUT"
        )
        session._retry_connection = False
        return session
