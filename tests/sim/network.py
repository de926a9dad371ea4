"""gRPC (`controller.api.transport`) and voter messages between simulated processes.

Voter messages are lost, repeated and reordered. A unary request may be late, lost, executed without
a response, or executed twice; a stream delivers in order and breaks. During a cut, streams hang.
Source: Kafka's `RaftEventSimulationTest`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from random import Random
from typing import Any

import grpc.aio

from penstock.controller.api.transport import (
    END_OF_STREAM,
    REQUEST_ID_KEY,
    Metadata,
    RpcFailed,
    StatusCode,
)
from penstock.controller.raft.messages import Message, TimeoutNow
from penstock.controller.raft.transport import Hello, PeerTransport
from penstock.controller.raft.transport import _encode as encode_group
from penstock.controller.raft.transport import _group_decoder as group_decoder
from tests.sim.loop import PROCESS, Process, process_name

_RECONNECT_S = 0.05
_CONNECT_S = 2.0
"""How long gRPC tries to connect (`grpc.min_reconnect_backoff_ms`)."""
_NO_MESSAGES = encode_group([])


def _host(address: str) -> str:
    return address.partition(":")[0]


def rpc_failed(code: StatusCode, details: str) -> RpcFailed:
    return RpcFailed(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


class Aborted(Exception):
    """Raised by `context.abort` in a handler."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.failure = rpc_failed(code, details)


class Links:
    """The cut directions. From or to ANY: everything that a process sends or receives."""

    ANY = ""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()
        self._rejected: set[tuple[str, str]] = set()

    def reject(self, source: str, target: str) -> None:
        """Refuse connections from one process to another, as a rejecting firewall does."""
        self._rejected.add((source, target))

    def admit(self, source: str, target: str) -> None:
        self._rejected.discard((source, target))

    def rejects(self, source: str, target: str) -> bool:
        return bool(self._rejected) and (source, target) in self._rejected

    def cut(self, source: str, target: str) -> None:
        self._cut.add((source, target))

    def mend(self, source: str, target: str) -> None:
        self._cut.discard((source, target))

    def mend_all(self) -> None:
        self._cut.clear()
        self._rejected.clear()

    @property
    def any_cut(self) -> bool:
        return bool(self._cut)

    def blocked(self, source: str, target: str) -> bool:
        cut = self._cut
        return bool(cut) and (
            (source, target) in cut or (source, self.ANY) in cut or (self.ANY, target) in cut
        )


class Network:
    def __init__(
        self, rng: Random, trace: Callable[..., None], *, latency_ms: float, lossy: float
    ) -> None:
        self.rng = rng
        self.trace = trace
        self.latency_ms = latency_ms
        self.lossy = lossy
        self.copies_late_s = 3.0
        """How late the second copy of a unary request may arrive."""
        self.first_messages_late_s: deque[float] = deque()
        """How late the first messages of the next streams arrive."""
        self.requests_late_s: dict[str, deque[float]] = {}
        """How late the next unary requests of a method arrive."""
        self.streams_begun: Counter[str] = Counter()
        """Number of streams that each process has begun, by its link."""
        self.links = Links()
        self.on_handover: Callable[[], None] | None = None
        """Called once, when a leader has asked another voter to take over."""
        self.listeners: dict[str, SimListener] = {}
        self._streams: dict[int, SimStreamCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serial = 0

    def spawn(self, travel: Coroutine[Any, Any, None]) -> None:
        """Start a task that belongs to no process."""
        task = asyncio.get_running_loop().create_task(travel, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=Context())

    def delay_s(self) -> float:
        delay_ms = self.latency_ms * (0.5 + self.rng.random())
        return delay_ms * (20 if self.rng.random() < self.lossy else 1) / 1000

    def chance(self, factor: float = 1.0) -> bool:
        return self.rng.random() < self.lossy * factor

    def send_raft(
        self,
        sender: Process,
        address: str,
        hello: Hello,
        message: Message,
        responded: Callable[[int, str], None],
    ) -> None:
        """Send a message between voters, which may be lost, repeated or overtaken. The stream that
        carries it may be refused.
        """
        sender.controller.metadata.says(message)
        if isinstance(message, TimeoutNow) and self.on_handover is not None:
            self.on_handover()
            self.on_handover = None
        if self.chance():
            return
        data = encode_group([message])
        loop = asyncio.get_running_loop()
        for _ in range(2 if self.chance() else 1):
            loop.call_later(
                self.delay_s(),
                self.arrive,
                sender,
                address,
                hello,
                data,
                responded,
                context=Context(),
            )

    def arrive(
        self,
        sender: Process,
        address: str,
        hello: Hello,
        data: bytes,
        responded: Callable[[int, str], None],
    ) -> None:
        """Deliver a controller's hello and its next message to another controller. The response
        takes no time, but needs the return direction.
        """
        listener = self.listeners.get(address)
        if (
            listener is None
            or listener.raft is None
            or self.links.blocked(sender.link, listener.process.link)
        ):
            return
        other = listener.process

        def report(why: str) -> None:
            if not self.links.blocked(other.link, sender.link):
                asyncio.get_running_loop().call_soon(
                    responded, hello.to, why, context=sender.context()
                )

        asyncio.get_running_loop().call_soon(
            _receive, listener.raft.__self__, hello, data, report, context=other.context()
        )

    def register_stream(self, stream: "SimStreamCall") -> None:
        self.streams_begun[stream.process.link] += 1
        self._serial += 1
        self._streams[self._serial] = stream
        if self._serial % 16 == 0:
            self._streams = {
                serial: open_stream
                for serial, open_stream in self._streams.items()
                if not open_stream.closed
            }

    def reject(self, source: str, target: str) -> None:
        """Let only connections that `Links.admit` accepts pass from now on; reset existing ones at
        both ends.
        """
        self.links.reject(source, target)
        for stream in list(self._streams.values()):
            if (
                stream.process.link == source
                and stream.server is not None
                and stream.server.link == target
            ):
                stream.reset()

    def process_died(self, process: Process, *, resets: bool) -> None:
        """Reset the connections of the process, or silence them."""
        for address, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]
                listener.died()
        for stream in list(self._streams.values()):
            if stream.process is process and resets:
                stream.cancel()
            elif stream.server is process:
                stream.server_died()


def _receive(
    peers: PeerTransport, hello: Hello, data: bytes, report: Callable[[str], None]
) -> None:
    """Handle a stream with at most one message, as `PeerTransport.serve` does."""
    refused = peers._refusal(hello)
    if refused is not None:
        if refused.forgot:
            report(refused.why)
        return
    if data is _NO_MESSAGES:
        report("")
    sender = hello.sender
    if peers._heard.get(sender.node_id) != sender:
        peers._heard[sender.node_id] = sender
        peers._introduce(sender)
    for message in group_decoder.decode(data):
        peers._receive(message)


class SimRaftSender:
    """`controller.raft.transport._Sender`, whose stream is ordered; here, each message travels
    separately.
    """

    is_over = False

    def __init__(
        self,
        node_id: int,
        hello_to: Callable[[int], Hello],
        addresses_of: Callable[[int], list[str]],
        responded: Callable[[int, str], None],
        tls: None,
    ) -> None:
        del tls
        process = PROCESS.get()
        assert process is not None, "a controller belongs to a process"
        self._responded = responded
        self._is_welcome = False
        self._process = process
        self._node_id = node_id
        self._hello_to = hello_to
        self._addresses_of = addresses_of
        self._stopped = False
        self._greet()

    async def stop(self) -> None:
        self._stopped = True

    def offer(self, message: Message) -> None:
        addresses = self._addresses_of(self._node_id)
        if addresses and not self._stopped:
            self._process.network.send_raft(
                self._process, addresses[0], self._hello_to(self._node_id), message, self._hear
            )

    def _greet(self) -> None:
        """Connect until the stream is accepted: it starts before there is anything to send."""
        addresses = self._addresses_of(self._node_id)
        if self._is_welcome or self._stopped or self._process.dead:
            return
        loop, network = asyncio.get_running_loop(), self._process.network
        if addresses:
            hello = self._hello_to(self._node_id)
            loop.call_later(
                network.latency_ms / 1000,
                network.arrive,
                self._process,
                addresses[0],
                hello,
                _NO_MESSAGES,
                self._hear,
                context=Context(),
            )
        loop.call_later(max(_RECONNECT_S, 3 * network.latency_ms / 1000), self._greet)

    def _hear(self, member: int, why: str) -> None:
        self._is_welcome = self._is_welcome or not why
        if not self._stopped:
            self._responded(member, why)


class SimListener:
    """`controller.api.transport.Listener`. raft: the bound `PeerTransport.serve`."""

    def __init__(
        self,
        unary: Mapping[str, Any],
        follow: Any,
        raft: Any = None,
        *,
        tls: None = None,
        on_handshake: Callable[[], None],
    ) -> None:
        del tls, on_handshake
        self.raft = raft
        process = PROCESS.get()
        assert process is not None, "a server belongs to a process"
        self.process = process
        self.network: Network = process.network
        self.unary = unary
        self.follow = follow
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serial = 0

    async def start(self, host: str, port: int) -> int:
        self.network.listeners[f"{host}:{port}"] = self
        return port

    async def stop(self, grace_s: float | None) -> None:
        del grace_s
        for address, listener in list(self.network.listeners.items()):
            if listener is self:
                del self.network.listeners[address]

    def call(
        self, method: str, request: bytes, timeout: float, metadata: Metadata
    ) -> "asyncio.Future[bytes]":
        """Run a handler in the server's process. The future belongs to the network."""
        loop = asyncio.get_running_loop()
        report: asyncio.Future[bytes] = loop.create_future()
        context = _UnaryContext(loop.time() + timeout, metadata)

        async def run() -> None:
            try:
                result = await self.unary[method](request, context)
            except Aborted as aborted:
                _fail(report, aborted.failure)
            except Exception as error:  # noqa: BLE001 - as gRPC does
                _fail(report, rpc_failed(StatusCode.UNKNOWN, repr(error)))
            else:
                if not report.done():
                    report.set_result(result)

        self._serial += 1
        serial = self._serial
        self._calls[serial] = report
        report.add_done_callback(lambda _: self._calls.pop(serial, None), context=Context())
        loop.call_soon(self._begin, run, context=self.process.context())
        return report

    def _begin(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def died(self) -> None:
        for report in list(self._calls.values()):
            _fail(report, rpc_failed(StatusCode.UNAVAILABLE, "connection reset"))


def _fail(report: "asyncio.Future[Any]", error: Exception) -> None:
    if not report.done():
        report.set_exception(error)
        report.exception()


class _UnaryContext:
    def __init__(self, deadline: float, metadata: Metadata) -> None:
        self._deadline = deadline
        self._metadata = metadata

    def time_remaining(self) -> float:
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    async def abort(self, code: StatusCode, details: str = "") -> None:
        raise Aborted(code, details)


class SimChannel:
    """The `controller.api.transport.Channel` of the process that creates it."""

    def __init__(self, address: str, tls: None = None) -> None:
        del tls
        process = PROCESS.get()
        assert process is not None, "a channel belongs to a process"
        self.address = address
        self._process = process
        self._network: Network = process.network

    def unary(self, method: str) -> Any:
        async def call(request: bytes, *, timeout: float, metadata: Metadata = ()) -> bytes:
            loop = asyncio.get_running_loop()
            report: asyncio.Future[bytes] = loop.create_future()
            self._network.spawn(self._exchange(method, request, timeout, metadata, report))
            try:
                async with asyncio.timeout(timeout):
                    return await report
            except TimeoutError:
                raise rpc_failed(StatusCode.DEADLINE_EXCEEDED, "no response in time") from None

        return call

    def follow(self) -> "SimStreamCall":
        stream = SimStreamCall(self._network, self._process, self.address)
        self._network.register_stream(stream)
        return stream

    async def close(self) -> None:
        pass

    async def _exchange(
        self,
        method: str,
        request: bytes,
        timeout: float,
        metadata: Metadata,
        report: "asyncio.Future[bytes]",
    ) -> None:
        network, rng = self._network, self._network.rng
        await asyncio.sleep(network.delay_s())
        if network.chance(0.3):
            await asyncio.sleep(rng.uniform(0, 8))
        if late_s := network.requests_late_s.get(method):
            await asyncio.sleep(late_s.popleft())
        request_id = dict(metadata).get(REQUEST_ID_KEY, "")
        if (
            network.links.blocked(self._process.link, server := _host(self.address))
            or network.chance()
        ):
            if rng.random() < 0.5:
                _fail(report, rpc_failed(StatusCode.UNAVAILABLE, "connection reset"))
            return
        copies = 2 if network.chance() else 1
        for copy in range(copies):
            if copy:
                await asyncio.sleep(rng.uniform(0, network.copies_late_s))
            listener = network.listeners.get(self.address)
            if listener is None or network.links.rejects(self._process.link, server):
                _fail(report, rpc_failed(StatusCode.UNAVAILABLE, "connection refused"))
                return
            network.trace("rpc", self._process.name, method)
            metadata_log = listener.process.controller.metadata
            metadata_log.requested(request_id)
            try:
                data = await listener.call(method, request, timeout, metadata)
            except RpcFailed as error:
                _fail(report, error)
                continue
            metadata_log.check_response(listener.process.name, method, request_id, data)
            if network.chance() or network.links.blocked(server, self._process.link):
                if rng.random() < 0.5:
                    _fail(
                        report,
                        rpc_failed(StatusCode.UNAVAILABLE, "connection reset after the request"),
                    )
                continue
            await asyncio.sleep(network.delay_s())
            if not report.done():
                report.set_result(data)


class _Pipe:
    """One direction of a stream: in order, late, and stalled while the link is cut."""

    def __init__(
        self, network: Network, source: str, target: str, deliver: Callable[[Any], None]
    ) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._deliver = deliver
        self._items: deque[tuple[float, Any]] = deque()
        self._last = 0.0
        self._busy = False
        self._loop = asyncio.get_running_loop()

    def send(self, item: Any, late_s: float = 0.0) -> None:
        self._last = max(self._last, self._loop.time() + self._network.delay_s() + late_s)
        self._items.append((self._last, item))
        if not self._busy:
            self._busy = True
            self._loop.call_at(self._last, self._pump, context=Context())

    def _pump(self) -> None:
        if self._network.links.blocked(self._source, self._target):
            self._loop.call_later(_RECONNECT_S, self._pump, context=Context())
            return
        now = self._loop.time()
        while self._items and self._items[0][0] <= now:
            self._deliver(self._items.popleft()[1])
        self._busy = bool(self._items)
        if self._busy:
            self._loop.call_at(self._items[0][0], self._pump, context=Context())


class _Inbox:
    """The messages received at one end of a stream. An exception is raised each time."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._items[0]
        if isinstance(item, Exception):
            raise item
        if item is not END_OF_STREAM:
            self._items.popleft()
        return item


class SimStreamCall:
    """The client's end of a stream, which also contains the server's end."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self._network = network
        self.process = process
        self.server: Process | None = None
        self.closed = False
        self._address = address
        self._inbox = _Inbox()
        self._server_inbox = _Inbox()
        self._handler: asyncio.Task[None] | None = None
        server = _host(address)
        self._up = _Pipe(network, process.link, server, self._at_server)
        self._down = _Pipe(network, server, process.link, self._inbox.put)
        self._up.send("connect")
        self._is_connecting, self._has_given_up, self._has_written = True, False, False
        asyncio.get_running_loop().call_later(_CONNECT_S, self._give_up, context=Context())

    def _give_up(self) -> None:
        if self._is_connecting and not self.closed:
            self.closed = self._has_given_up = True
            self._inbox.put(rpc_failed(StatusCode.UNAVAILABLE, "connection attempt timed out"))

    async def read(self) -> Any:
        return await self._inbox.get()

    async def write(self, request: bytes) -> None:
        if self.closed:
            raise asyncio.InvalidStateError("the stream is closed")
        late = self._network.first_messages_late_s
        is_late, self._has_written = not self._has_written and bool(late), True
        self._up.send(request, late.popleft() if is_late else 0.0)

    def cancel(self) -> bool:
        if not self.closed:
            self.closed = True
            self._up.send("cancel")
        return True

    async def code(self) -> StatusCode:
        return StatusCode.UNAVAILABLE

    async def details(self) -> str:
        return ""

    def server_died(self) -> None:
        self._handler = None
        self._down.send(rpc_failed(StatusCode.UNAVAILABLE, "connection reset"))

    def reset(self) -> None:
        """Break the stream at both ends. The firewall is on the client's side, so its reset reaches
        the client even if the direction from the server is cut.

        Otherwise the server would fence a client that cannot notice, a case that
        `controller.api.lease` does not cover.
        """
        error = rpc_failed(StatusCode.UNAVAILABLE, "connection reset")
        asyncio.get_running_loop().call_later(
            self._network.delay_s(), self._inbox.put, error, context=Context()
        )
        self._at_server("cancel")

    def _at_server(self, item: Any) -> None:
        if item == "connect":
            self._is_connecting = False
            if self._has_given_up:
                return
            listener = self._network.listeners.get(self._address)
            if listener is None or self._network.links.rejects(
                self.process.link, _host(self._address)
            ):
                self._down.send(rpc_failed(StatusCode.UNAVAILABLE, "connection refused"))
                return
            self.server = listener.process
            self._network.trace("follow", self.process.name)
            asyncio.get_running_loop().call_soon(
                self._start, listener, context=listener.process.context()
            )
        elif item == "cancel":
            if self.server is not None:
                asyncio.get_running_loop().call_soon(
                    self._cancel_handler, context=self.server.context()
                )
        else:
            self._server_inbox.put(item)

    def _start(self, listener: SimListener) -> None:
        self._handler = asyncio.get_running_loop().create_task(self._serve(listener))

    def _cancel_handler(self) -> None:
        if self._handler is not None:
            self._handler.cancel()

    async def _serve(self, listener: SimListener) -> None:
        try:
            await listener.follow(None, _StreamContext(self))
        except Aborted as aborted:
            self._down.send(aborted.failure)
        else:
            self._down.send(END_OF_STREAM)

    def server_write(self, message: bytes) -> None:
        process = PROCESS.get()
        assert process is not None
        process.controller.metadata.told(process.name, message)
        self._down.send(message)

    async def server_read(self) -> Any:
        return await self._server_inbox.get()


class _StreamContext:
    def __init__(self, stream: SimStreamCall) -> None:
        self._stream = stream

    async def read(self) -> Any:
        return await self._stream.server_read()

    async def write(self, message: bytes) -> None:
        self._stream.server_write(message)

    async def abort(self, code: StatusCode, details: str = "") -> None:
        raise Aborted(code, details)

    def peer(self) -> str:
        return process_name()
