"""Messages between voters over gRPC: one stream per direction, dialled by the side that sends.

Invariant: `send` never blocks and never fails; what can not be delivered soon is lost, which Raft expects. Heartbeats share the stream with
appends, so that a blocked stream looks as dead as it is. A stream begins with who talks to whom in which cluster; anything else is refused.
Must not look into messages. Source: raft.md 5.1; etcd `rafthttp`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

import msgspec
import structlog

from controller.raft.messages import Message
from controller.rpc.transport import END_OF_STREAM, Channel, RpcFailed, StatusCode, StreamCall, StreamContext

_log = structlog.get_logger()

BACKOFF_S = 0.1
WRITE_TIMEOUT_S = 2.0
"""A stream that takes nothing for this long is given up and dialled anew."""

WAITING_COUNT_MAX = 1_024
"""Messages for one voter; what comes on top is lost."""

WAITING_DISCONNECTED_MAX = 32
"""Likewise while there is no connection: old messages are of no use."""

GROUP_BYTES = 4 << 20
"""About what is sent as one gRPC message."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    cluster_id: str
    sender: int
    to: int


_encode = msgspec.msgpack.Encoder().encode
_hello_decoder = msgspec.msgpack.Decoder(Hello)
_group_decoder = msgspec.msgpack.Decoder(list[Message])


class PeerTransport:
    """The sending and the receiving half of one voter. peers: host:port of the others."""

    def __init__(self, cluster_id: str, node_id: int, peers: Mapping[int, str], receive: Callable[[Message], None]) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._receive = receive
        self._senders = {peer: _Sender(Hello(cluster_id, node_id, peer), address) for peer, address in peers.items()}

    def start(self) -> None:
        for sender in self._senders.values():
            sender.start()

    async def stop(self) -> None:
        for sender in self._senders.values():
            await sender.stop()

    def send(self, message: Message) -> None:
        """See Transport.send."""
        sender = self._senders.get(message.to)
        if sender is not None:
            sender.offer(message)

    async def serve(self, _: object, context: StreamContext) -> None:
        """The receiving end of another voter's stream."""
        data = await context.read()
        if data is END_OF_STREAM:
            return
        try:
            hello = _hello_decoder.decode(cast("bytes", data))
            why = self._refusal(hello)
            if why:
                _log.warning("peer_refused", peer=context.peer(), reason=why)
                await context.abort(StatusCode.PERMISSION_DENIED, why)
                return
            while (data := await context.read()) is not END_OF_STREAM:
                for message in _group_decoder.decode(cast("bytes", data)):
                    if message.sender == hello.sender:
                        self._receive(message)
        except msgspec.DecodeError as error:
            await context.abort(StatusCode.INVALID_ARGUMENT, f"not a message of a voter: {error}")

    def _refusal(self, hello: Hello) -> str:
        if hello.cluster_id != self._cluster_id:
            return f"this controller belongs to cluster {self._cluster_id!r}, not to {hello.cluster_id!r}"
        if hello.to != self._node_id or hello.sender not in self._senders:
            return f"this is controller {self._node_id} and knows {sorted(self._senders)}; {hello.sender} looked for {hello.to}"
        return ""


class _Sender:
    """One voter as the others' messages reach it."""

    def __init__(self, hello: Hello, address: str) -> None:
        self._hello = hello
        self._address = address
        self._waiting: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._connected = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"raft-to-{self._hello.to}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def offer(self, message: Message) -> None:
        if len(self._waiting) < (WAITING_COUNT_MAX if self._connected else WAITING_DISCONNECTED_MAX):
            self._waiting.append(message)
            self._wake.set()

    async def _run(self) -> None:
        was_told = False
        while True:
            channel = Channel(self._address)
            call = channel.raft()
            try:
                await self._send_all(call)
            except (RpcFailed, TimeoutError, asyncio.InvalidStateError) as error:
                detail = error.details() if isinstance(error, RpcFailed) else type(error).__name__
                if self._connected or not was_told:
                    was_told = True
                    _log.info("peer_not_reached", peer=self._hello.to, address=self._address, detail=detail)
            finally:
                self._connected = False
                self._waiting.clear()
                call.cancel()
                await channel.close()
            await asyncio.sleep(BACKOFF_S)

    async def _send_all(self, call: StreamCall) -> None:
        """Until the stream breaks. The other side sends nothing: whatever comes from it is its end."""
        ending = asyncio.get_running_loop().create_task(_end_of(call))
        try:
            await self._write(call, _encode(self._hello))
            self._connected = True
            while not ending.done():
                if not self._waiting:
                    self._wake.clear()
                    waking = asyncio.get_running_loop().create_task(self._wake.wait())
                    await asyncio.wait((waking, ending), return_when=asyncio.FIRST_COMPLETED)
                    waking.cancel()
                    continue
                await self._write(call, _encode(self._group()))
            await ending
        finally:
            ending.cancel()
            await asyncio.wait((ending,))  # not `await ending`: our own cancellation must not be taken for its
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


async def _end_of(call: StreamCall) -> None:
    while await call.read() is not END_OF_STREAM:
        pass
