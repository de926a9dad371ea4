"""Sends messages between voters over gRPC, with one stream per direction. The sender connects.

Heartbeats and appends share the stream, so that a blocked stream also stops the heartbeats.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from logging import ERROR, INFO, WARNING
from typing import Final, NamedTuple, Protocol, cast

import msgspec
import structlog

from penstock.controller.api.caller_checks import CallerRefused, Gate
from penstock.controller.api.callers import EXCHANGE, CallerRole
from penstock.controller.api.tls import TlsFiles
from penstock.controller.api.tls_errors import explain
from penstock.controller.api.transport import (
    END_OF_STREAM,
    Channel,
    RpcFailed,
    StatusCode,
    StreamCall,
    StreamContext,
)
from penstock.controller.raft.membership import is_impostor, is_intended_receiver
from penstock.controller.raft.messages import Endpoint, Members, Message, Start

_log = structlog.get_logger(__name__)

BACKOFF_S = 0.1
REFUSED_BACKOFF_S = 1.0
"""Pause before reconnecting to a controller that rejects the stream (another cluster, another disk)
or whose name cannot be resolved. It is longer than `BACKOFF_S`, which applies to controllers that
may be starting, because each name lookup opens several sockets.
"""
_UNRESOLVED: Final = ("errors resolving", "DNS resolution failed")
"""gRPC's error texts for a name that cannot be resolved."""

WRITE_TIMEOUT_S = 2.0
"""Timeout of a write, after which the sender reconnects."""

WAITING_COUNT_MAX = 1_024
"""Maximum number of messages that wait for one voter. Additional messages are dropped."""

WAITING_DISCONNECTED_MAX = 32
"""The same limit while there is no connection. It is lower because old messages are useless."""

GROUP_BYTES = 4 << 20
"""Approximate size of one gRPC message."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first message of a stream. to_directory: disk of the receiver, or "" for any. version:
    version of the sender's member list. start: the current start of the sender.
    """

    cluster_id: str
    sender: Endpoint
    to: int
    to_directory: str
    version: int
    start: Start = Start()


class Memory(Protocol):
    """Checks and reports promises: see `controller.raft.promises`."""

    @property
    def begun(self) -> Start: ...

    def refusal(self, member: int, directory: str, start: Start) -> str:
        """Return the reason why messages of this start of a controller must not be counted, or ""
        if they may.
        """
        ...

    def responded(self, member: int, why: str) -> None:
        """Record that another controller has checked `begun`. why: what this disk has lost, or ""
        if that controller does not know of any loss.
        """
        ...


class _NoMemory:
    """Implements Memory for a controller without a journal."""

    begun = Start()

    def refusal(self, member: int, directory: str, start: Start) -> str:
        del member, directory, start
        return ""

    def responded(self, member: int, why: str) -> None:
        pass


class Refused(NamedTuple):
    """The reason why a stream must end. forgot: whether the sender's disk has lost promises."""

    why: str
    forgot: bool = False


_REFUSALS = frozenset({StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED})
_WELCOME = b""
_encode = msgspec.msgpack.Encoder().encode
_hello_decoder = msgspec.msgpack.Decoder(Hello)
_group_decoder = msgspec.msgpack.Decoder(list[Message])


_NOBODY = Members(())


class PeerTransport:
    """Sends and receives the messages of one controller. `send` never blocks and never fails.
    Messages that cannot be delivered are dropped, which Raft tolerates. To connect to a controller,
    the transport tries the address that the controller has sent, then the one in the log, then the
    configured one.

    peers: configured host:port of the other controllers.
    """

    def __init__(
        self,
        cluster_id: str,
        own: Endpoint,
        peers: Mapping[int, str],
        receive: Callable[[Message], None],
        *,
        members: Callable[[], Members] = lambda: _NOBODY,
        introduce: Callable[[Endpoint], None] = lambda _: None,
        memory: Memory = _NoMemory(),  # noqa: B008 - it has no state
        tls: TlsFiles | None = None,
        gate: Gate | None = None,
    ) -> None:
        """members: returns the current members. introduce: called with the endpoint of each
        controller that connects. tls: None for plaintext. gate: checks senders; None if every
        sender is allowed.
        """
        self._tls = tls
        self._gate = gate or Gate()
        self._memory = memory
        self._cluster_id = cluster_id
        self._own = own
        self._peers = dict(peers)
        self._receive = receive
        self._members = members
        self._introduce = introduce
        self._heard: dict[int, Endpoint] = {}
        self._refused = ""
        """The last logged reason, so that a repeated reason is not logged again."""

        self._senders: dict[int, _Sender] = {}
        self._started = False

    def start(self, address: str) -> None:
        """Start sending. Connect to the members immediately, so that they receive our `address`."""
        self._own = Endpoint(self._own.node_id, address, self._own.directory)
        self._started = True
        for member in sorted({*self._peers, *self._members().everyone} - {self._own.node_id}):
            self._sender(member)

    async def stop(self) -> None:
        self._started = False
        for sender in self._senders.values():
            await sender.stop()
        self._senders.clear()

    def send(self, message: Message) -> None:
        """See Transport.send."""
        sender = self._sender(message.to) if self._started else None
        if sender is not None:
            sender.offer(message)

    async def serve(self, _: object, context: StreamContext) -> None:
        """Receive the stream of another controller."""
        data = await context.read()
        if data is END_OF_STREAM:
            return
        try:
            hello = _hello_decoder.decode(cast("bytes", data))
            self._gate.check_node(EXCHANGE, CallerRole.CONTROLLER, hello.sender.node_id, context)
            refused = self._refusal(hello) or await self._listen(hello, context)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            await context.abort(
                StatusCode.INVALID_ARGUMENT, f"not a message of a controller: {error}"
            )
            return
        except CallerRefused as error:
            await context.abort(StatusCode.UNAUTHENTICATED, str(error))
            return
        if refused is not None:
            if refused.why != self._refused:
                self._refused = refused.why
                _log.log(
                    ERROR if refused.forgot else WARNING,
                    "peer_rejected",
                    peer=context.peer(),
                    reason=refused.why,
                )
            await context.abort(
                StatusCode.DATA_LOSS if refused.forgot else StatusCode.PERMISSION_DENIED,
                refused.why,
            )

    async def _listen(self, hello: Hello, context: StreamContext) -> Refused | None:
        """Deliver messages until the stream ends or must end. Return the reason why it must end, or
        None.
        """
        sender = hello.sender
        self._heard[sender.node_id] = sender
        self._introduce(sender)
        await context.write(_WELCOME)
        try:
            while (data := await context.read()) is not END_OF_STREAM:
                group = _group_decoder.decode(cast("bytes", data))
                if refused := self._refusal(hello):
                    return refused
                for message in group:
                    if message.sender == sender.node_id:
                        self._receive(message)
            return None
        finally:
            if self._heard.get(sender.node_id) is sender:
                del self._heard[sender.node_id]

    def _refusal(self, hello: Hello) -> Refused | None:
        """Return the reason why the sender is rejected, or None. This is checked for every group of
        messages, because members and promises may change during a stream.
        """
        own, sender, members = self._own, hello.sender, self._members()
        if hello.cluster_id != self._cluster_id:
            return Refused(
                f"this controller belongs to cluster {self._cluster_id!r}, not to"
                f" {hello.cluster_id!r}"
            )
        if hello.to != own.node_id or not is_intended_receiver(
            members, own, hello.to_directory, hello.version
        ):
            wanted = f"{hello.to} with directory {hello.to_directory or 'any'}"
            return Refused(
                f"this is controller {own.node_id} with directory {own.directory}; {sender.node_id}"
                f" looked for {wanted}"
            )
        if is_impostor(members, sender.node_id, sender.directory, hello.version):
            return Refused(
                f"controller {sender.node_id} is registered with another data directory than"
                f" {sender.directory}: if the other one is lost, run `penstock quorum remove"
                f" {sender.node_id}`, then start this one with an empty data directory and"
                " --controller-quorum-join-servers"
            )
        forgot = self._memory.refusal(sender.node_id, sender.directory, hello.start)
        return Refused(forgot, forgot=True) if forgot else None

    def _sender(self, node_id: int) -> "_Sender | None":
        sender = self._senders.get(node_id)
        if sender is None or sender.is_over:
            if not self._addresses_of(node_id):
                return None
            sender = self._senders[node_id] = _Sender(
                node_id, self._hello_to, self._addresses_of, self._memory.responded, self._tls
            )
        return sender

    def _hello_to(self, node_id: int) -> Hello:
        members = self._members()
        return Hello(
            self._cluster_id,
            self._own,
            node_id,
            members.endpoint(node_id).directory,
            members.version,
            self._memory.begun,
        )

    def _addresses_of(self, node_id: int) -> list[str]:
        """Return the possible addresses of a controller, most likely first. Empty if the transport
        should not connect to it.
        """
        members = self._members()
        listed, heard = members.endpoint(node_id), self._heard.get(node_id)
        is_same = heard is not None and listed.directory in {"", heard.directory}
        configured = (
            self._peers.get(node_id, "")
            if not members.voters or node_id in members.everyone
            else ""
        )
        found = [heard.address if heard is not None and is_same else "", listed.address, configured]
        return list(dict.fromkeys(filter(None, found)))


class _Sender:
    """Sends to one controller as long as its address is known."""

    def __init__(
        self,
        node_id: int,
        hello_to: Callable[[int], Hello],
        addresses_of: Callable[[int], list[str]],
        responded: Callable[[int, str], None],
        tls: TlsFiles | None,
    ) -> None:
        self._responded = responded
        self._tls = tls
        self._node_id = node_id
        self._hello_to = hello_to
        self._addresses_of = addresses_of
        self._waiting: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._connected = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"raft-to-{node_id}")

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))

    def offer(self, message: Message) -> None:
        if len(self._waiting) < (
            WAITING_COUNT_MAX if self._connected else WAITING_DISCONNECTED_MAX
        ):
            self._waiting.append(message)
            self._wake.set()

    async def _run(self) -> None:
        logged: str | None = None
        """The last logged failure, so that a repeated failure is not logged again."""
        attempt = 0
        while addresses := self._addresses_of(self._node_id):
            address = addresses[attempt % len(addresses)]
            channel = Channel(address, self._tls)
            call = channel.raft()
            backoff_s = BACKOFF_S
            try:
                backoff_s = await self._send_all(call, self._hello_to(self._node_id))
            except (RpcFailed, TimeoutError, asyncio.InvalidStateError) as error:
                problem = self._problem(error)
                is_refused = isinstance(error, RpcFailed) and error.code() in _REFUSALS
                if isinstance(error, RpcFailed) and error.code() is StatusCode.DATA_LOSS:
                    self._responded(self._node_id, error.details() or "")
                backoff_s = REFUSED_BACKOFF_S if problem else pause_after(error)
                if (
                    (self._connected and not is_refused)
                    or logged is None
                    or problem not in {"", logged}
                ):
                    logged = problem
                    _log.log(
                        WARNING if problem else INFO,
                        "peer_unreachable",
                        peer=self._node_id,
                        address=address,
                        detail=problem or _detail(error),
                    )
            finally:
                attempt += 1
                self._connected = False
                self._waiting.clear()
                call.cancel()
                await channel.close()
            await asyncio.sleep(backoff_s)

    def _problem(self, error: BaseException) -> str:
        """Return the problem with TLS or with this controller's certificate, or "" if there is
        none.
        """
        if not isinstance(error, RpcFailed):
            return ""
        if error.code() is StatusCode.UNAUTHENTICATED:
            return f"it refuses this certificate: {error.details()}"
        return explain(error.details() or "", has_tls=self._tls is not None)

    async def _send_all(self, call: StreamCall, hello: Hello) -> float:
        """Send until the stream breaks or the receiver's disk has been replaced. The receiver only
        sends a welcome message and the end of the stream.

        Return the seconds until the next attempt.
        """
        ending = asyncio.get_running_loop().create_task(self._end_of(call))
        try:
            await self._write(call, _encode(hello))
            self._connected = True
            while not ending.done() and self._hello_to(self._node_id).to_directory in {
                hello.to_directory,
                "",
            }:
                if not self._waiting:
                    self._wake.clear()
                    waking = asyncio.get_running_loop().create_task(self._wake.wait())
                    await asyncio.wait((waking, ending), return_when=asyncio.FIRST_COMPLETED)
                    waking.cancel()
                    continue
                await self._write(call, _encode(self._group()))
            if not ending.done():
                return 0.0
            await ending
            return BACKOFF_S
        finally:
            ending.cancel()
            # `await ending` would not distinguish our own cancellation from that of the task.
            await asyncio.wait((ending,))
            if not ending.cancelled():
                ending.exception()

    async def _write(self, call: StreamCall, data: bytes) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await call.write(data)

    def _group(self) -> list[Message]:
        group: list[Message] = []
        size_bytes = 0
        while self._waiting and size_bytes < GROUP_BYTES:
            message = self._waiting.popleft()
            size_bytes += sum(entry.size_bytes for entry in getattr(message, "entries", ()))
            group.append(message)
        return group

    async def _end_of(self, call: StreamCall) -> None:
        while await call.read() is not END_OF_STREAM:
            self._responded(self._node_id, "")


def pause_after(error: BaseException) -> float:
    """Return the seconds until the next attempt to connect to a controller."""
    is_lasting = isinstance(error, RpcFailed) and (
        error.code() in _REFUSALS or any(words in _detail(error) for words in _UNRESOLVED)
    )
    return REFUSED_BACKOFF_S if is_lasting else BACKOFF_S


def _detail(error: BaseException) -> str:
    return (error.details() or "") if isinstance(error, RpcFailed) else type(error).__name__
