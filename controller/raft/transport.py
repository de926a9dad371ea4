"""Messages between voters over gRPC: one stream per direction, dialled by the side that sends.

Invariants: `send` never blocks and never fails; what cannot be delivered soon is lost, which Raft
expects. Heartbeats share the stream with appends, so that a blocked stream looks as dead as it is.
A stream begins with who talks to whom in which cluster, from which disk and where it can be found;
what a controller says whose disk was replaced is not let through. A controller is looked for where
it said that it is, then where the log says, then where the configuration does. Must not look into
messages. Source: etcd `rafthttp`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from logging import ERROR, WARNING
from typing import NamedTuple, Protocol, cast

import msgspec
import structlog

from controller.api.transport import (
    END_OF_STREAM,
    Channel,
    RpcFailed,
    StatusCode,
    StreamCall,
    StreamContext,
)
from controller.raft.membership import is_impostor, is_meant
from controller.raft.messages import Endpoint, Members, Message, Start

_log = structlog.get_logger()

BACKOFF_S = 0.1
REFUSED_BACKOFF_S = 1.0
"""A controller with which something is wrong (another cluster, another disk) is not asked as often
as one that may just be starting.
"""

WRITE_TIMEOUT_S = 2.0
"""A stream that takes nothing for this long is given up and dialled anew."""

WAITING_COUNT_MAX = 1_024
"""Messages for one voter; what comes on top is lost."""

WAITING_DISCONNECTED_MAX = 32
"""Likewise while there is no connection: old messages are of no use."""

GROUP_BYTES = 4 << 20
"""About what is sent as one gRPC message."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """to_directory: the disk that is looked for, empty: any. version: of the sender's members.
    start: the sender's.
    """

    cluster_id: str
    sender: Endpoint
    to: int
    to_directory: str
    version: int
    start: Start = Start()


class Memory(Protocol):
    """What is known of promises: see `controller.raft.promises`."""

    @property
    def begun(self) -> Start: ...

    def refusal(self, member: int, directory: str, start: Start) -> str:
        """Why what this start of a controller says must not be counted; empty: it may."""
        ...

    def answered(self, member: int, why: str) -> None:
        """Another controller has answered `begun`: what this disk forgot; empty: nothing that it
        knows of.
        """
        ...


class _NoMemory:
    """Implements Memory for a controller without a journal."""

    begun = Start()

    def refusal(self, member: int, directory: str, start: Start) -> str:
        del member, directory, start
        return ""

    def answered(self, member: int, why: str) -> None:
        pass


class Refused(NamedTuple):
    """Why a stream may not go on. forgot: its sender's disk lacks what it promised."""

    why: str
    forgot: bool = False


_WELCOME = b""
_encode = msgspec.msgpack.Encoder().encode
_hello_decoder = msgspec.msgpack.Decoder(Hello)
_group_decoder = msgspec.msgpack.Decoder(list[Message])


_NOBODY = Members(())


class PeerTransport:
    """The sending and the receiving half of one controller. peers: host:port of others, as
    configured.
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
    ) -> None:
        """members: the present ones. introduce: told where somebody is that has called."""
        self._memory = memory
        self._cluster_id = cluster_id
        self._own = own
        self._peers = dict(peers)
        self._receive = receive
        self._members = members
        self._introduce = introduce
        self._heard: dict[int, Endpoint] = {}
        self._refused = ""
        """The last reason, told once in a row."""

        self._senders: dict[int, _Sender] = {}
        self._started = False

    def start(self, address: str) -> None:
        """Messages leave from now on; the members are called at once, so that they learn where we
        are, which is at `address`.
        """
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
        """The receiving end of another controller's stream."""
        data = await context.read()
        if data is END_OF_STREAM:
            return
        try:
            hello = _hello_decoder.decode(cast("bytes", data))
            refused = self._refusal(hello) or await self._listen(hello, context)
        except msgspec.DecodeError as error:
            await context.abort(
                StatusCode.INVALID_ARGUMENT, f"not a message of a controller: {error}"
            )
            return
        if refused is not None:
            if refused.why != self._refused:
                self._refused = refused.why
                _log.log(
                    ERROR if refused.forgot else WARNING,
                    "peer_refused",
                    peer=context.peer(),
                    reason=refused.why,
                )
            await context.abort(
                StatusCode.DATA_LOSS if refused.forgot else StatusCode.PERMISSION_DENIED,
                refused.why,
            )

    async def _listen(self, hello: Hello, context: StreamContext) -> Refused | None:
        """Until the stream ends or may not go on; why not."""
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
        """Members and what is known of promises change while a stream lasts: looked at again with
        every group.
        """
        own, sender, members = self._own, hello.sender, self._members()
        if hello.cluster_id != self._cluster_id:
            return Refused(
                f"this controller belongs to cluster {self._cluster_id!r}, not to"
                f" {hello.cluster_id!r}"
            )
        if hello.to != own.node_id or not is_meant(members, own, hello.to_directory, hello.version):
            wanted = f"{hello.to} with directory {hello.to_directory or 'any'}"
            return Refused(
                f"this is controller {own.node_id} with directory {own.directory}; {sender.node_id}"
                f" looked for {wanted}"
            )
        if is_impostor(members, sender.node_id, sender.directory, hello.version):
            return Refused(
                f"controller {sender.node_id} is known with another data directory than"
                f" {sender.directory}: if the other one is lost, `penstock controller remove"
                f" {sender.node_id}`, then start this one empty with --join"
            )
        forgot = self._memory.refusal(sender.node_id, sender.directory, hello.start)
        return Refused(forgot, forgot=True) if forgot else None

    def _sender(self, node_id: int) -> "_Sender | None":
        sender = self._senders.get(node_id)
        if sender is None or sender.is_over:
            if not self._addresses_of(node_id):
                return None
            sender = self._senders[node_id] = _Sender(
                node_id, self._hello_to, self._addresses_of, self._memory.answered
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
        """Where it may be, the likeliest first; none if it is nobody that we should look for."""
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
    """One controller as our messages reach it. It ends when nobody knows an address any more."""

    def __init__(
        self,
        node_id: int,
        hello_to: Callable[[int], Hello],
        addresses_of: Callable[[int], list[str]],
        answered: Callable[[int, str], None],
    ) -> None:
        self._answered = answered
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
        is_logged = False
        attempt = 0
        while addresses := self._addresses_of(self._node_id):
            address = addresses[attempt % len(addresses)]
            channel = Channel(address)
            call = channel.raft()
            backoff_s = BACKOFF_S
            try:
                backoff_s = await self._send_all(call, self._hello_to(self._node_id))
            except (RpcFailed, TimeoutError, asyncio.InvalidStateError) as error:
                detail = error.details() if isinstance(error, RpcFailed) else type(error).__name__
                is_refused = (
                    isinstance(error, RpcFailed) and error.code() is StatusCode.PERMISSION_DENIED
                )
                if isinstance(error, RpcFailed) and error.code() is StatusCode.DATA_LOSS:
                    self._answered(self._node_id, error.details() or "")
                backoff_s = REFUSED_BACKOFF_S if is_refused else BACKOFF_S
                if (self._connected and not is_refused) or not is_logged:
                    is_logged = True
                    _log.info(
                        "peer_not_reached", peer=self._node_id, address=address, detail=detail
                    )
            finally:
                attempt += 1
                self._connected = False
                self._waiting.clear()
                call.cancel()
                await channel.close()
            await asyncio.sleep(backoff_s)

    async def _send_all(self, call: StreamCall, hello: Hello) -> float:
        """Until the stream breaks, or the one that we look for has become another one. The other
        side sends a welcome and its end.

        Returns the seconds until the next attempt.
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
            await asyncio.wait(
                (ending,)
            )  # not `await ending`: our own cancellation must not be taken for its
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
            self._answered(self._node_id, "")
