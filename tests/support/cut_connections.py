"""Members of a group behind a proxy that repeatedly resets all their connections."""

import asyncio
import contextlib
import inspect
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from penstock.protocol import apis
from penstock.protocol.gen import share_group_describe
from tests.support.clients import create_topic, produce
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tests.support.java import running
from tests.support.stream_server import StreamServer
from tests.support.waiting import until

TOPIC: Final = "t"
GROUP: Final = "g"
PARTITIONS: Final = 4
CUTS: Final = 5


class CuttingProxy:
    """A TCP proxy in front of a broker, whose connections a test can cut."""

    def __init__(self) -> None:
        self.target_port = 0
        self.cut_count = 0
        self._connections: set[asyncio.StreamWriter] = set()
        self._server = StreamServer(self._relay)

    def start(self) -> int:
        return self._server.open()

    def stop(self) -> None:
        self._server.close()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._connections):
            self.cut_count += 1
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, their_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        ends = {writer, their_writer}
        self._connections |= ends
        try:
            await asyncio.gather(_pump(reader, their_writer), _pump(theirs, writer))
        finally:
            self._connections -= ends
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class CutCluster:
    """A broker behind the proxy. bootstrap: the address of the proxy."""

    def __init__(self, proxy: CuttingProxy, bootstrap: str) -> None:
        self.proxy = proxy
        self.bootstrap = bootstrap

    @property
    def direct(self) -> str:
        """Return the address of the broker itself."""
        return f"127.0.0.1:{self.proxy.target_port}"

    async def write(self) -> None:
        """Write a record into each partition, bypassing the proxy."""
        await asyncio.to_thread(produce, self.direct, TOPIC, [b"v"] * PARTITIONS, range(PARTITIONS))


@asynccontextmanager
async def cut_cluster(directory: Path, **settings: Any) -> AsyncGenerator[CutCluster]:
    """Start a broker whose clients connect through the proxy, with a topic."""
    proxy = CuttingProxy()
    async with Cluster(directory, brokers=0, **settings) as cluster:
        port = proxy.start()
        try:
            address = f"127.0.0.1:{port}"
            broker = await cluster.start_broker(
                0, advertised_listeners=(address,), advertised_check="off"
            )
            proxy.target_port = broker.port
            await asyncio.to_thread(create_topic, address, TOPIC, PARTITIONS)
            yield CutCluster(proxy, address)
        finally:
            proxy.stop()


class Members:
    """The progress of the two members of a group."""

    def __init__(self) -> None:
        self.assignments_count = 0
        self.committed = [0, 0]
        """Number of commits of each member."""
        self.errors: list[str] = []

    def read(self) -> None:
        """Update the progress."""

    async def is_settled(self) -> bool:
        """Return whether both have joined. More assignments may follow."""
        return self.assignments_count >= 2

    async def rebalances_count(self) -> int:
        """Return a number that grows with each rebalance."""
        return self.assignments_count


class Program(Members):
    """Members in a program that prints a line for each event."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        super().__init__()
        self._process = process
        self._log = log
        self._read_bytes = 0

    def read(self) -> None:
        """Read the lines printed since the last call."""
        with self._log.open("rb") as source:
            source.seek(self._read_bytes)
            text = source.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(text)
        for line in text.decode().splitlines():
            match line.split(" ", 2):
                case ["assigned", _]:
                    self.assignments_count += 1
                case ["committed", number]:
                    self.committed[int(number)] += 1
                case ["error", *_]:
                    self.errors.append(line)
                case _:
                    pass
        if self._process.poll() is not None:
            self.errors.append("the program has ended")

    def output(self) -> str:
        return self._log.read_text()[-10_000:]


class ShareProgram(Program):
    """Members of a share group, whose clients do not report assignments."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, address: str) -> None:
        super().__init__(process, log)
        self._address = address

    async def _describe(self) -> Any:
        request = share_group_describe.ShareGroupDescribeRequest([GROUP])
        response = await asyncio.to_thread(
            send_request, self._address, apis.SHARE_GROUP_DESCRIBE, request
        )
        return response["groups"][0]

    async def is_settled(self) -> bool:
        members = (await self._describe())["members"]
        return len(members) == 2 and all(item["assignment"]["topic_partitions"] for item in members)

    async def rebalances_count(self) -> int:
        epoch = (await self._describe())["group_epoch"]
        assert isinstance(epoch, int)
        return epoch


async def go_through_cuts(cut: CutCluster, members: Members, *, rejoins: bool = False) -> None:
    """Repeatedly cut all connections, and wait until both members have committed more."""

    async def wait_for(condition: Callable[[], Any]) -> None:
        async def is_over() -> bool:
            members.read()
            if members.errors:
                return True
            found = condition()
            return bool(await found if inspect.isawaitable(found) else found)

        await until(is_over)
        assert not members.errors

    async def commit_more() -> None:
        before = list(members.committed)
        await cut.write()
        await wait_for(lambda: all(map(int.__lt__, before, members.committed)))

    await wait_for(members.is_settled)
    await commit_more()
    await commit_more()  # By then, both have reported the assignment that the first one needed.
    settled = await members.rebalances_count()
    for _ in range(CUTS):
        cut.proxy.cut()
        await commit_more()
    assert cut.proxy.cut_count >= 2 * CUTS
    assert rejoins or await members.rebalances_count() == settled, "there was a rebalance"


async def run_through_cuts(
    cut: CutCluster,
    command: Sequence[str | Path],
    log: Path,
    *,
    shares: bool = False,
    rejoins: bool = False,
) -> None:
    """Run a program with two members, and cut its connections.

    rejoins: whether its client rejoins the group after each broken connection.
    """
    with running(*map(str, command), log=log) as process:
        members = ShareProgram(process, log, cut.direct) if shares else Program(process, log)
        try:
            await go_through_cuts(cut, members, rejoins=rejoins)
        except (TimeoutError, AssertionError) as error:
            raise AssertionError(f"{error!r}: {members.committed}: {members.output()}") from None
