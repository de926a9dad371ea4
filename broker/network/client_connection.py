"""One client connection: a socket around the sans-I/O core in `broker.network.connection`."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from penstock.base.buffers import Buffer
from penstock.base.listeners import SecurityProtocol
from penstock.base.principal import ANONYMOUS, Principal
from penstock.broker.config import BrokerConfig
from penstock.broker.network.admission import CallLater, Deadline
from penstock.broker.network.closing_order import ClosingOrder
from penstock.broker.network.connection import FrameReader, ResponseOrder, ResponseSlot
from penstock.broker.network.dispatcher import CannotRespond, Dispatcher
from penstock.broker.network.handshake_order import HandshakeOrder
from penstock.broker.network.request import UNKNOWN_SOFTWARE, Respond, Response
from penstock.broker.network.request_memory import RequestMemory
from penstock.broker.network.request_meter import RequestMeter
from penstock.broker.network.tls_channel import FEED_BYTES_MAX, TlsBroken, TlsChannel
from penstock.broker.network.wake_limit import WakeLimit
from penstock.broker.security.access import ClientAccess
from penstock.protocol.apis import SASL_AUTHENTICATE
from penstock.protocol.errors import WireError
from penstock.protocol.sasl.mechanisms import AuthenticationFailed
from penstock.stream.wal.sender import Sender

IDLE: Final = "no request (connections_idle_ms)"
"""The reason for closing an idle connection."""
SLOW_SENDER_S: Final = 0.5
"""A TLS client is slow if it has sent less than its wake-up threshold within this time."""
BURST_BYTES_MAX: Final = 1 << 16
"""Bytes read from one connection before other connections are read. Without this limit, libuv would
read up to 32 buffers in a row, of up to 1 MiB each.
"""
_API_KEY_BYTES: Final = 2
_ONE_BUFFER: Final = (bytearray, bytes, memoryview)
_NOTHING: Final = memoryview(b"")


class ConnectionServer(Protocol):
    """The state shared by all connections of a broker. `broker.network.server.Server` implements
    it.
    """

    config: BrokerConfig
    access: ClientAccess
    loop: asyncio.AbstractEventLoop
    call_later: CallLater
    handshakes: HandshakeOrder
    closings: ClosingOrder
    memory: RequestMemory
    requests: RequestMeter
    receive_buffer: memoryview
    tls_buffer: memoryview
    received_bytes: int
    sent_bytes: int
    muted: set["Connection"]
    """Connections that are muted because of a quota."""

    @property
    def dispatcher(self) -> Dispatcher: ...

    def add(self, connection: "Connection") -> None:
        """Register a new connection, which is admitted when its listener has room."""
        ...

    def authenticated(self, connection: "Connection") -> None: ...

    def remove(self, connection: "Connection") -> None: ...

    def wait_for_dispatcher(self, connection: "Connection") -> None:
        """Pump the connection once the dispatcher is no longer blocked."""
        ...

    def flush_soon(self, connection: "Connection") -> None:
        """Flush the connection in the next event loop iteration."""
        ...

    def log_closed(self, connection: "Connection", reason: str) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """One client connection. Implements `ConnectionInfo` for handlers.

    Requests are started, and their responses sent, in order of arrival. Produce requests overlap.
    As in Kafka, any other request blocks later requests until it is done, so a connection has at
    most one task. At a memory limit, the connection stops reading, and TCP applies back-pressure to
    the client. In the middle of a frame, a connection may use up to twice the shared limit, because
    partial frames could otherwise block each other forever; above that, it is closed. While the
    storage is full, Produce requests are not started; other requests continue.
    """

    def __init__(
        self, server: ConnectionServer, number: int, listener: str, protocol: SecurityProtocol
    ) -> None:
        self.id = number
        self.listener = listener
        self.security_protocol = protocol
        self.principal = ANONYMOUS
        self.usage = server.memory.usage(ANONYMOUS)
        self._access = server.access.listener(listener)
        self.sasl = self._access.new_sasl() if protocol.has_sasl else None
        self.is_authenticated = False
        self.local_host = ""
        self.local_port = 0
        self.peer = ""
        self.peer_host = ""
        self.client_software = UNKNOWN_SOFTWARE
        self.sender = Sender()
        self.last_request_at = server.loop.time()
        self.last_bytes_at = self.last_request_at
        self._server = server
        self._now = server.loop.time
        self._tls = TlsChannel(self._access.tls_context(protocol)) if protocol.has_tls else None
        self._wake_limit = WakeLimit()
        self._deadline: asyncio.TimerHandle | None = None
        self._reader = FrameReader(server.receive_buffer, server.config.request_bytes_max)
        self._order = ResponseOrder()
        self._waiting: deque[bytearray] = deque()
        self._waiting_bytes = 0
        self._charged_bytes = 0
        self._outbox: list[Buffer] = []
        self._outbox_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_pumping = False
        self._is_write_paused = False
        self._is_read_paused = False
        self._has_ended = False
        """Whether the client has disconnected, so that the connection will be closed soon."""
        self._is_held = False
        """Whether the listener delays the connection."""
        self._is_shaking_hands = False
        """Whether received bytes are waiting for the next handshake step."""
        self._mute: Deadline | None = None
        """Timer that unmutes the connection."""
        self._burst_bytes = 0
        """Bytes read since other connections were last read."""

    # --- asyncio protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop transports do not derive from asyncio's transport classes.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self.local_host, self.local_port = _address(transport.get_extra_info("sockname"))
        self.peer_host, peer_port = _address(transport.get_extra_info("peername"))
        self.peer = f"{self.peer_host}:{peer_port}"
        transport.set_write_buffer_limits(high=self._server.config.response_bytes_max)
        self._server.add(self)

    def held(self) -> None:
        """See `broker.network.admission.NewConnection`."""
        self._is_held = True
        self._update_reading()

    def admitted(self) -> None:
        """See `broker.network.admission.NewConnection`."""
        if self._is_held:
            self._is_held = False
            self.last_request_at = self._server.loop.time()
            self._update_reading()
        if self.security_protocol is SecurityProtocol.PLAINTEXT:
            self.authenticated(ANONYMOUS)
        else:
            limits = self._access.config
            self._reader.limit(limits.sasl_receive_bytes_max)
            self._deadline = self._server.loop.call_later(
                limits.authentication_timeout_ms / 1_000,
                self.close,
                "no authentication in time (connection.authentication.timeout.ms)",
            )

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._tls is None:
            return self._reader.get_buffer()
        buffer = self._server.tls_buffer
        return buffer if self._tls.is_established else buffer[:FEED_BYTES_MAX]

    def buffer_updated(self, nbytes: int) -> None:
        if self._tls is None:
            self._received(nbytes)
            return
        if self._has_ended:
            return
        data = self._server.tls_buffer[:nbytes]
        self.last_bytes_at = self._server.loop.time()
        if self._tls.is_established:
            self._take_tls(data)
        else:
            self._tls.feed(data)
            self._is_shaking_hands = True
            self._update_reading()
            self._server.handshakes.add(self.peer_host, self._take_tls)

    def eof_received(self) -> bool:
        """Close soon, but not immediately, because many clients may disconnect in the same event
        loop iteration.
        """
        self._close_soon()
        return True

    # --- TLS and authentication -------------------------------------------------------------------

    def _take_tls(self, data: memoryview = _NOTHING) -> None:
        """Process these bytes together with the bytes already passed to TLS."""
        if self._tls is None or self._transport is None or self._transport.is_closing():
            return
        try:
            self._advance_tls(self._tls, data)
        except TlsBroken as error:
            self._end_tls(self._tls, str(error))
        if self._is_shaking_hands:
            self._is_shaking_hands = False
            self._update_reading()

    def _advance_tls(self, tls: TlsChannel, data: memoryview) -> None:
        """Continue the handshake, then decrypt. Raises TlsBroken."""
        if not tls.is_established:
            is_established = tls.shake_hands()
            self._write(tls.outgoing())
            if not is_established:
                return
            if self.sasl is None and not self._take_certificate(tls):
                return
        for at in range(0, max(1, len(data)), FEED_BYTES_MAX):
            tls.feed(data[at : at + FEED_BYTES_MAX])
            self._decrypt(tls)
        self._write(tls.outgoing())
        self._wake_after(self._reader.missing_bytes)

    def _decrypt(self, tls: TlsChannel) -> None:
        """Decrypt received bytes. Raises TlsBroken."""
        while self._transport is not None and not self._transport.is_closing():
            count = tls.read_into(self._reader.get_buffer())
            if not count:
                return
            self._received(count)

    def _wake_after(self, missing_bytes: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._wake_limit.expect(self._transport, missing_bytes)

    def drain_received(self, now: float) -> None:
        """Determine whether a frame has stalled, by requesting a wake-up for its next byte. Until
        that byte arrives, the connection is not considered stalled.
        """
        if self._wake_limit.is_late and now - self.last_bytes_at >= SLOW_SENDER_S:
            self._wake_after(0)

    def _take_certificate(self, tls: TlsChannel) -> bool:
        try:
            self.authenticated(self._access.principal_of(tls.peer_certificate()))
        except AuthenticationFailed as error:
            self._server.access.failed_count += 1
            self.close(str(error))
            return False
        return True

    def _end_tls(self, tls: TlsChannel, reason: str) -> None:
        self._write(tls.outgoing())
        if not tls.is_established:
            self._server.access.failed_count += 1
        if reason and self._transport is not None and not self._transport.is_closing():
            self._server.log_closed(self, f"TLS: {reason}")
        self._close_soon()

    def _close_soon(self) -> None:
        if not self._has_ended and self._transport is not None:
            self._has_ended = True
            self._server.closings.add(self._transport.close)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def authenticated(self, principal: Principal) -> None:
        """Set the principal, and remove the limits for unauthenticated connections."""
        self.principal = principal
        self._move_usage()
        if self.is_authenticated:
            return
        self.is_authenticated = True
        self._server.authenticated(self)
        self._reader.limit(self._server.config.request_bytes_max)
        if self._deadline is not None:
            self._deadline.cancel()

    def _move_usage(self) -> None:
        """Charge current and future memory usage to the principal."""
        memory = self._server.memory
        usage = memory.usage(self.principal)
        if usage is not self.usage:
            memory.forget(self)
            memory.charge(usage, self._charged_bytes)
            memory.charge(self.usage, -self._charged_bytes)
            self.usage = usage

    # --- receiving --------------------------------------------------------------------------------

    def _received(self, nbytes: int) -> None:
        if self._transport is None:
            return
        try:
            frames = self._reader.received(nbytes)
        except WireError as error:
            self.close(str(error))
            return
        server = self._server
        self.last_bytes_at = self._now()
        server.received_bytes += nbytes
        self._burst_bytes += nbytes
        if self._burst_bytes >= BURST_BYTES_MAX:
            server.loop.call_soon(self._end_burst)
        if frames:
            self.last_request_at = self.last_bytes_at
            self._waiting.extend(frames)
            self._waiting_bytes += sum(map(len, frames))
            self.pump()
        else:
            self._update_reading()
        if server.memory.is_full(self.usage) and self._reader.buffered_bytes:
            refusal = server.memory.refusal(self.usage)
            if refusal:
                self.close(refusal)

    def _end_burst(self) -> None:
        self._burst_bytes = 0
        self._update_reading()

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self._mute is not None:
            self._mute.cancel()
            self._server.muted.discard(self)
        if self._task is not None:
            self._task.cancel()
        self._waiting.clear()
        self._server.memory.charge(self.usage, -self._charged_bytes)
        self._charged_bytes = 0
        self._server.remove(self)

    # --- requests ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Start pending requests, then decide whether to continue reading. This is cheap if no
        request is pending.
        """
        if self._is_pumping:
            return
        if self._waiting:
            self._is_pumping = True
            try:
                while self._waiting and self._may_start():
                    frame = self._waiting.popleft()
                    self._waiting_bytes -= len(frame)
                    self._start(frame)
            finally:
                self._is_pumping = False
        self._update_reading()

    def _may_start(self) -> bool:
        server, order = self._server, self._order
        if (
            self._transport is None
            or self._transport.is_closing()
            or self._task is not None
            or self._is_write_paused
            or self._mute is not None
        ):
            return False
        if (
            len(order) >= server.config.requests_in_flight_max
            or order.held_bytes > server.config.response_bytes_max
        ):
            return False
        if server.dispatcher.is_blocked(self._waiting[0]):
            server.wait_for_dispatcher(self)
            return False
        return True

    def _start(self, frame: bytearray) -> None:
        slot = self._order.open(len(frame))
        # Nothing is read while requests are pending here, so this request was complete no later
        # than when the last bytes arrived.
        respond = partial(self._respond, slot, self._api_key(frame), self.last_bytes_at)
        try:
            coroutine = self._server.dispatcher.start(self, frame, respond)
        except (WireError, CannotRespond) as error:
            self.close(str(error))
            return
        if coroutine is not None:
            self._task = self._server.loop.create_task(self._run(coroutine, respond))

    def _api_key(self, frame: bytearray) -> int:
        """Return the API key of a frame, for the request metrics."""
        if self.sasl is not None and self.sasl.takes_bare_tokens:
            return SASL_AUTHENTICATE.key
        return int.from_bytes(frame[:_API_KEY_BYTES], "big")

    async def _run(self, coroutine: Coroutine[Any, Any, Response], respond: Respond) -> None:
        try:
            response = await coroutine
        except (WireError, CannotRespond) as error:
            self.close(str(error))
            return
        finally:
            self._task = None
        respond(response)

    def _respond(
        self, slot: ResponseSlot, api_key: int, received_at: float, response: Response
    ) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._server.requests.responded(api_key, self._now() - received_at)
        ready = self._order.fill(slot, _buffers(response))
        if ready:
            self._send(ready)
        self.pump()

    def _send(self, ready: Sequence[Buffer]) -> None:
        """Collect the responses of one event loop iteration and send them with one system call,
        because one WAL object acknowledges many requests.
        """
        if not self._outbox:
            self._server.flush_soon(self)
        self._outbox += ready
        self._outbox_bytes += sum(map(len, ready))
        if self._outbox_bytes > self._server.config.response_bytes_max:
            self.flush()

    def flush(self) -> None:
        """Send the responses collected in this event loop iteration."""
        outbox, self._outbox = self._outbox, []
        sent_bytes, self._outbox_bytes = self._outbox_bytes, 0
        if outbox and self._transport is not None and not self._transport.is_closing():
            self._server.sent_bytes += sent_bytes
            if self._tls is None:
                self._transport.writelines(outbox)
                return
            try:
                self._transport.writelines(self._tls.encrypt(outbox))
            except TlsBroken as error:
                self._end_tls(self._tls, str(error))

    def _update_reading(self) -> None:
        """Report the memory usage of this connection to the server, and pause or resume reading."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        server = self._server
        buffered_bytes = (
            self._reader.buffered_bytes + self._waiting_bytes + self._order.request_bytes
        )
        if buffered_bytes != self._charged_bytes:
            server.memory.charge(self.usage, buffered_bytes - self._charged_bytes)
            self._charged_bytes = buffered_bytes
        pause = (
            bool(self._waiting)
            or self._is_write_paused
            or self._burst_bytes >= BURST_BYTES_MAX
            or self._mute is not None
            or self._is_held
            or self._is_shaking_hands
        )
        if not pause and server.memory.is_full(self.usage) and not self._reader.is_mid_frame:
            server.memory.wait(self)
            pause = True
        if pause is not self._is_read_paused:
            self._is_read_paused = pause
            if pause:
                transport.pause_reading()
            else:
                self.last_bytes_at = self._now()
                transport.resume_reading()

    def mute(self, wait_ms: int) -> None:
        """Stop reading and starting requests for this long, unless the connection is already muted
        for longer. Responses to earlier requests are still sent. A muted connection is not
        considered idle.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wait_s = wait_ms / 1_000
        if self._mute is not None:
            if self._mute.when() >= self._server.loop.time() + wait_s:
                return
            self._mute.cancel()
        self._mute = self._server.call_later(wait_s, self._unmute)
        self._server.muted.add(self)
        self._update_reading()

    def _unmute(self) -> None:
        self._mute = None
        self._server.muted.discard(self)
        self.last_request_at = self._server.loop.time()
        self.pump()

    # --- closing ----------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Abort the connection with one (rate-limited) log event. Pending requests receive no
        response.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._server.log_closed(self, reason)
            self._transport.abort()

    def close_quietly(self) -> None:
        """Send the completed responses, then close the connection. Used at shutdown and to make the
        client use another broker.
        """
        self.flush()
        if self._tls is not None and self._tls.is_established:
            self._write(self._tls.end())
        if self._transport is not None:
            self._transport.close()

    @property
    def in_flight_count(self) -> int:
        return len(self._order) + len(self._waiting)

    def expired(self, now: float) -> str | None:
        """Return the reason why this connection must be closed for inactivity, or None."""
        config = self._server.config
        if self._is_read_paused and not self._is_write_paused:
            return None  # the broker has paused reading
        if (
            self._reader.is_mid_frame
            and not self._wake_limit.is_late
            and (now - self.last_bytes_at) * 1_000 > config.request_stall_ms
        ):
            return "an incomplete request stalled (request_stall_ms)"
        if len(self._order) and not self._is_write_paused:
            return None
        if (now - self.last_request_at) * 1_000 > config.connections_idle_ms:
            return IDLE
        return None


def _buffers(response: Response) -> Sequence[Buffer]:
    if response is None:
        return ()
    return (
        (cast("Buffer", response),)
        # This is a tuple of types, because a union type would be created anew for each response.
        if isinstance(response, _ONE_BUFFER)
        # The dispatcher has already encoded long responses.
        else cast("Sequence[Buffer]", response)
    )


def _address(name: Sequence[object] | None) -> tuple[str, int]:
    """Return the host and port of a socket name. IPv4-mapped IPv6 addresses are converted to IPv4.
    Both are empty for a closed socket.
    """
    if not name:
        return "", 0
    host = str(name[0])
    return (host.removeprefix("::ffff:") if "." in host else host), int(str(name[1]))
