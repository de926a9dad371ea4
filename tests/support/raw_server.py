"""Send prepared HTTP responses to clients of object stores."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.stream_server import StreamServer


@dataclass
class RawServer:
    """Implement just enough HTTP to send prepared responses; None closes the connection instead."""

    responses: list[bytes | None]
    requests: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    endpoint: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line[15:])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                self.requests.append(head)
                self.bodies.append(await reader.readexactly(length))
                error_response = self.responses.pop(0)
                if error_response is None:
                    break
                writer.write(error_response)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(*responses: bytes | None) -> AsyncIterator[RawServer]:
    """Run a server that sends these responses in order."""
    raw = RawServer(list(responses))
    server = StreamServer(raw.serve, limit_bytes=1 << 20)
    raw.endpoint = f"http://127.0.0.1:{server.open()}"
    try:
        yield raw
    finally:
        server.close()


def error_response(status: int, code: str, message: str = "text") -> bytes:
    """Return an error in the XML of S3, Google and Azure."""
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    body = f"<?xml version='1.0'?>{error}".encode()
    return (
        f"HTTP/1.1 {status} X\r\nContent-Type: application/xml\r\nContent-Length:"
        f" {len(body)}\r\n\r\n".encode()
        + body
    )
