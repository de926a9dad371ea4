"""A connection of an asyncio task to one broker.

Invariants: one request at a time (the caller ensures this). After an error or a cancelled request,
the connection cannot be reused, because a late response could be mistaken for the response to the
next request. There are no retries or timeouts, and responses are not interpreted.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Final, Self, TypeVar

from penstock.protocol import framing
from penstock.protocol.apis import API_VERSIONS, ApiSpec
from penstock.protocol.errors import WireError
from penstock.protocol.gen import api_versions
from penstock.protocol.sasl.login import SaslLogin
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
_RECONNECT_SHARE: Final = 0.8
"""Fraction of the session lifetime after which a connection is replaced."""
_DISCARD_BYTES: Final = 4_096
_T = TypeVar("_T")


class LoginRefused(ConnectionError):
    """Raised when client and broker cannot authenticate to each other."""


class AsyncConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._correlation_id = 0
        self._ends_at: float | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        login: SaslLogin | None = None,
    ) -> Self:
        """Connect and log in. Raises OSError (LoginRefused if the login fails), EOFError,
        WireError.
        """
        connection = cls(*await asyncio.open_connection(host, port, ssl=tls))
        if login is not None:
            try:
                await connection._log_in(login)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def send_request(
        self,
        api: ApiSpec,
        request: object,
        kind: type[_T],
        *,
        version: int | None = None,
    ) -> _T:
        """Send a request and return the response, decoded as this message type. Raises OSError,
        EOFError, WireError.

        version: None for the highest version.
        """
        if self._writer.is_closing():
            # uvloop raises RuntimeError if a transport is written to after a reset
            raise ConnectionResetError("the connection is closed")
        self._correlation_id += 1
        version = api.max if version is None else version
        self._writer.write(
            framing.encode_request_frame(
                api, version, self._correlation_id, api.codec.encode_request, request
            )
        )
        await self._writer.drain()
        prefix = await self._reader.readexactly(framing.SIZE_BYTES)
        size_bytes = framing.frame_size_bytes(prefix, RESPONSE_BYTES_MAX)
        frame = await self._reader.readexactly(size_bytes)
        response = framing.decode_response(api, version, self._correlation_id, frame)
        assert isinstance(response, kind)
        return response

    async def greet(self) -> None:
        """Send the first request of every client, which does not require a login. Raises the errors
        of `send_request`, and WireError if the peer responds with an error.
        """
        found = await self.send_request(
            API_VERSIONS,
            api_versions.ApiVersionsRequest(),
            api_versions.ApiVersionsResponse,
            version=0,
        )
        if found.error_code:
            raise WireError(f"ApiVersions failed with error {found.error_code}")

    async def wait_closed(self) -> None:
        """Wait until the broker has closed the connection or its process has ended."""
        with suppress(OSError):
            while await self._reader.read(_DISCARD_BYTES):
                pass  # brokers never send unsolicited data

    @property
    def has_ended(self) -> bool:
        """Whether the broker has closed or reset the connection, or will soon close it because its
        session ends.
        """
        return self.is_broken or (
            self._ends_at is not None and asyncio.get_running_loop().time() > self._ends_at
        )

    @property
    def is_broken(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def fileno(self) -> int:
        return int(self._writer.get_extra_info("socket").fileno())

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _log_in(self, login: SaslLogin) -> None:
        requests = login.requests()
        try:
            request = next(requests)
            while True:
                request = requests.send(await self.send_request(*request))
        except StopIteration:
            if login.session_lifetime_ms:
                lifetime_s = login.session_lifetime_ms / 1_000
                self._ends_at = asyncio.get_running_loop().time() + _RECONNECT_SHARE * lifetime_s
        except AuthenticationFailed as error:
            raise LoginRefused(f"the login failed: {error}") from None
