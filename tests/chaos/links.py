"""TCP proxies in front of each node that cut, hold, delay and reset connections.

The source port identifies the sender (through /proc on Linux), so a fault affects one pair of
nodes. A cut silently stops all connections of a pair until the fault ends; a hold stops only
existing connections, so retries on newer ones arrive first.
"""

import asyncio
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.schedule import CLIENTS

_PIECE_BYTES: Final = 64 * 1024
_LOOKUP_PAUSE_S: Final = 0.02
_LOOKUPS_MAX: Final = 5
"""The kernel may skip a row of /proc/net/tcp while other connections change, so the lookup of a
connection without a row is repeated.
"""
_LOOPBACK: Final = ("0100007F", "0000000000000000FFFF00000100007F")
"""127.0.0.1 in /proc: as an IPv4 address, and as an IPv6 socket (such as gRPC's) contains it."""
Ends = tuple[int, int]
"""The ports of a connection: that of the dialing node, and that of the proxy. The first alone is
not unique, because connections to different targets may share a local port.
"""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_END_BEHIND_S: Final = 0.5
"""Delay between the last bytes of a held connection and its end, so that the receiver processes the
bytes first.
"""


class Diallers:
    """Finds the dialing node of a connection. One scan of /proc serves all waiting connections, so
    many simultaneous ones cost only a few scans.
    """

    def __init__(self, pids: Callable[[], dict[str, int | None]]) -> None:
        self._pids = pids
        self._waiting: dict[Ends, asyncio.Future[str]] = {}
        self._task: asyncio.Task[None] | None = None

    async def of(self, ends: Ends) -> str:
        """Return the node that dialed this connection, or CLIENTS if no node did."""
        if sys.platform != "linux":
            return CLIENTS
        found = self._waiting.setdefault(ends, asyncio.get_running_loop().create_future())
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._probe())
        return await asyncio.shield(found)

    async def _probe(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            names = await asyncio.to_thread(_names_by_ends, set(waiting), self._pids())
            for ends, found in waiting.items():
                found.set_result(names.get(ends, CLIENTS))
            await asyncio.sleep(_LOOKUP_PAUSE_S)


def _names_by_ends(connections: set[Ends], pids: dict[str, int | None]) -> dict[Ends, str]:
    requested = {f"socket:[{inode}]": ends for ends, inode in _inodes(connections).items()}
    found: dict[Ends, str] = {}
    for name, pid in pids.items():
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                ends = requested.get(_link(entry))
                if ends is not None:
                    found[ends] = name
    return found


def _link(entry: os.DirEntry[str]) -> str:
    try:
        return os.readlink(entry.path)
    except OSError:
        return ""


def _inodes(connections: set[Ends]) -> dict[Ends, str]:
    found: dict[Ends, str] = {}
    for _ in range(_LOOKUPS_MAX):
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with suppress(OSError):
                _add_inodes(Path(table).read_text(), connections, found)
        if len(found) == len(connections):
            break
    return found


def _add_inodes(table: str, connections: set[Ends], found: dict[Ends, str]) -> None:
    for line in table.splitlines()[1:]:
        fields = line.split(maxsplit=10)
        host, _, port = fields[1].partition(":")
        ends = int(port, 16), int(fields[2].rpartition(":")[2], 16)
        if host in _LOOPBACK and ends in connections:
            found[ends] = fields[9]


@dataclass(eq=False, slots=True)
class _Connection:
    """A connection from node `dialled` to node `to`. `number` increases with each connection of the
    network.
    """

    dialled: str
    to: str
    number: int
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.dialled, self.to))

    def reset(self) -> None:
        for writer in self.writers:
            reset(writer)


def _role(name: str) -> str:
    return name.partition(" ")[0]


@dataclass(eq=False, slots=True)
class Hold:
    """Holds what `source` sends to `target` on these connections, or on the next connection if
    there are none.
    """

    source: str
    target: str
    connections: set[_Connection]

    def has(self, connection: _Connection, source: str) -> bool:
        return connection in self.connections and source == self.source


def reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection and drop the bytes in flight, as a machine crash does."""
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
        )
    writer.transport.abort()


class Network:
    """All links. `pids` returns the process ids of running nodes by name."""

    def __init__(self, pids: Callable[[], dict[str, int | None]]) -> None:
        self._diallers = Diallers(pids)
        self._cuts: list[tuple[str, str]] = []
        self._holds: list[Hold] = []
        self._delays_s: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._proxies: dict[str, Proxy] = {}
        self._newest: dict[frozenset[str], int] = {}
        self._connection_count = 0
        self.connection_counts: Counter[tuple[str, str]] = Counter()
        """Connections by source and target: "broker", "controller" or "clients"."""
        self.late_count = 0
        """Held pieces that arrived after a newer connection between the same two nodes existed."""
        self.late_client_count = 0
        """The same for pieces from clients that had closed their connection, because the newer one
        may be that of another client.
        """

    def add(self, name: str, port: int, target_port: int) -> None:
        """Add a proxy at `port` in front of node `name`, which listens on `target_port` while it
        runs.
        """
        self._proxies[name] = Proxy(self, name, port, target_port)

    async def node_runs(self, name: str) -> None:
        await self._proxies[name].open()

    def node_ended(self, name: str) -> None:
        self._proxies[name].close()

    def cut(self, source: str, target: str) -> None:
        """Drop all data from source to target. Several faults may cut a pair at once."""
        self._cuts.append((source, target))

    def heal(self, source: str, target: str, *, late: bool) -> None:
        """Heal the cut. If `late`, the stopped bytes arrive; otherwise they are lost with their
        connections.
        """
        self._cuts.remove((source, target))
        if not late:
            for connection in list(self._between(source, target)):
                connection.reset()
        self._publish()

    def hold(self, source: str, target: str) -> Hold:
        """Hold what source sends to target on existing connections; newer connections are not
        affected.
        """
        hold = Hold(source, target, set(self._between(source, target)))
        self._holds.append(hold)
        return hold

    def release(self, hold: Hold) -> None:
        """Deliver the held bytes."""
        self._holds.remove(hold)
        self._publish()

    def reset_node(self, name: str) -> None:
        for connection in list(self._connections):
            if name in (connection.dialled, connection.to):
                connection.reset()

    def slow(self, name: str, delay_ms: float) -> None:
        """Delay every chunk to and from this node; 0 ends the delay."""
        self._delays_s[name] = delay_ms / 1_000

    async def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _between(self, source: str, target: str) -> Iterator[_Connection]:
        ends = {source, target}
        return (connection for connection in self._connections if connection.ends == ends)

    def _publish(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def connected(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        target_port: int,
    ) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer, name, target_port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: None if writer.is_closing() else writer.transport.abort())

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        name: str,
        target_port: int,
    ) -> None:
        try:
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", target_port)
        except OSError:
            reset(writer)
            return
        connection: _Connection | None = None
        try:
            ends = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
            dialled = await self._diallers.of(ends)
            connection = self._opened(dialled, name, (writer, their_writer))
            await asyncio.gather(
                self._pump(reader, their_writer, connection, dialled),
                self._pump(their_reader, writer, connection, name),
            )
        finally:
            if connection is not None:
                self._connections.discard(connection)
            writer.close()
            their_writer.close()

    def _opened(
        self, dialled: str, to: str, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    ) -> _Connection:
        self._connection_count += 1
        connection = _Connection(dialled, to, self._connection_count, writers)
        self._connections.add(connection)
        self._newest[connection.ends] = connection.number
        self.connection_counts[_role(dialled), _role(to)] += 1
        for hold in self._holds:
            if not hold.connections and connection.ends == {hold.source, hold.target}:
                hold.connections.add(connection)
        return connection

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: _Connection,
        source: str,
    ) -> None:
        """Forward what `source` sends on this connection until its end."""
        target = connection.to if source == connection.dialled else connection.dialled
        was_held = False
        with suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                if delay_s := self._delays_s.get(source, 0.0) + self._delays_s.get(target, 0.0):
                    await asyncio.sleep(delay_s)
                if await self._until_free(connection, source, target):
                    was_held = True
                    self._count_late(connection, source, reader)
                writer.write(data)
                await writer.drain()
        # The end of a connection is not forwarded over a cut link either.
        await self._until_free(connection, source, target)
        if was_held:
            await asyncio.sleep(_END_BEHIND_S)
        writer.close()

    def _count_late(
        self, connection: _Connection, source: str, reader: asyncio.StreamReader
    ) -> None:
        if self._newest[connection.ends] <= connection.number:
            return
        if CLIENTS not in connection.ends:
            self.late_count += 1
        elif source == CLIENTS and (reader.at_eof() or reader.exception() is not None):
            self.late_client_count += 1

    async def _until_free(self, connection: _Connection, source: str, target: str) -> bool:
        """Wait until the direction is not blocked. Return whether it was held (not just cut)."""
        was_held = False
        while True:
            is_held = any(hold.has(connection, source) for hold in self._holds)
            if not is_held and (source, target) not in self._cuts:
                return was_held
            was_held = was_held or is_held
            await self._changed.wait()


class Proxy:
    """A listening port that is open while its node runs."""

    def __init__(self, network: Network, name: str, port: int, target_port: int) -> None:
        self._network = network
        self._name = name
        self._port = port
        self._target_port = target_port
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._network.connected(reader, writer, self._name, self._target_port)
