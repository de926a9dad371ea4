"""A client that sends arbitrary data: single requests encoded by our codecs, or raw bytes."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

from penstock.protocol import apis, framing
from penstock.protocol.codecs import CODECS
from penstock.protocol.gen import produce, sasl_authenticate, sasl_handshake
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT
from tests.support.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S


class Attacker:
    """A single plaintext connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, port: int, from_host: str = "127.0.0.1") -> AsyncIterator["Attacker"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(from_host, 0))
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def send(self, data: bytes | bytearray) -> None:
        self._writer.write(data)

    async def frame(self) -> bytes | None:
        """Return the next response, or None after the broker has closed the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                return await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None

    async def exchange(
        self, api: apis.ApiSpec, version: int, request: Any, *, client_id: str | None = None
    ) -> bytes | None:
        """Send a request; return the frame of the response, or None if the broker closed the
        connection instead.
        """
        encode = CODECS[api.key].encode_request
        self.send(
            framing.encode_request_frame(api, version, 1, encode, request, client_id=client_id)
        )
        return await self.frame()

    async def send_request(
        self, api: apis.ApiSpec, version: int, request: Any, *, client_id: str | None = None
    ) -> Any:
        frame = await self.exchange(api, version, request, client_id=client_id)
        assert frame is not None, f"{api.name} got no response"
        _, at = framing.parse_response_header(api, version, frame)
        return framing.decode_body(
            CODECS[api.key].decode_response, frame, at, version, MAX_ELEMENTS_COUNT
        )

    async def produce(self, topic: str, batch: bytes | bytearray) -> Any:
        """Produce to partition 0, and return the response for it."""
        data = produce.TopicProduceData(
            name=topic, partition_data=[produce.PartitionProduceData(0, bytes(batch))]
        )
        request = produce.ProduceRequest(acks=-1, timeout_ms=TIMEOUT_S * 1_000, topic_data=[data])
        return (
            (await self.send_request(apis.PRODUCE, 9, request)).responses[0].partition_responses[0]
        )

    async def log_in(self, mechanism: str, *tokens: bytes) -> Any:
        """Send a SASL handshake and these tokens. Return the response to the last one."""
        await self.send_request(
            apis.SASL_HANDSHAKE, 1, sasl_handshake.SaslHandshakeRequest(mechanism)
        )
        exchange = None
        for token in tokens:
            exchange = await self.token(token)
        return exchange

    async def token(self, token: bytes) -> Any:
        request = sasl_authenticate.SaslAuthenticateRequest(token)
        return await self.send_request(apis.SASL_AUTHENTICATE, 2, request)
