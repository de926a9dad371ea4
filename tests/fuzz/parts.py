"""Adapters for parsers whose input is not plain bytes: journal files and HTTP connections."""

import asyncio
from typing import Any

from penstock.controller.raft.directory import AppendFile
from penstock.deploy.node.health import HttpServer

_SEGMENT = f"{1:020d}.journal"


class JournalParts:
    """Implement JournalFiles and JournalOwner for one segment in memory."""

    directory_id = "fuzz"
    journal_number = 1

    def __init__(self, segment: bytes) -> None:
        self._segment = segment

    def __str__(self) -> str:
        return "journal"

    def names(self) -> list[str]:
        return [_SEGMENT]

    def read(self, name: str) -> bytes:
        assert name == _SEGMENT
        return self._segment

    def cut(self, name: str, size_bytes: int) -> None:
        assert name == _SEGMENT
        assert 0 <= size_bytes < len(self._segment)

    def create(self, name: str) -> AppendFile:
        raise AssertionError(f"opening a journal creates {name}")

    def rename(self, old: str, new: str) -> None:
        raise AssertionError(f"opening a journal renames {old} to {new}")

    def remove(self, name: str) -> None:
        raise AssertionError(f"opening a journal removes {name}")

    def sync(self) -> None:
        raise AssertionError("opening a journal syncs its directory")

    def record_journal(self, number: int) -> None:
        raise AssertionError(f"opening a journal notes segment {number}")


class Connection(asyncio.Transport):
    """Collect the output of the server."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close


def response_of(server: HttpServer, request: bytes, limit: int) -> bytes:
    """Return the server's output for a client that sends these bytes and nothing more."""
    return asyncio.run(_response_of(server, request, limit))


async def _response_of(server: HttpServer, request: bytes, limit: int) -> bytes:
    reader = asyncio.StreamReader(limit)
    protocol = asyncio.StreamReaderProtocol(reader)
    connection = Connection()
    protocol.connection_made(connection)
    writer = asyncio.StreamWriter(connection, protocol, reader, asyncio.get_running_loop())
    reader.feed_data(request)
    reader.feed_eof()
    await server._serve(reader, writer)
    assert connection.is_closing(), "the connection stays open"
    return bytes(connection.written)
