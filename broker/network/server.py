"""The listeners of a broker and their connections."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import structlog

from penstock.base.listeners import SecurityProtocol
from penstock.base.listening import start_listening, stop_listening
from penstock.base.log_limit import LogLimit
from penstock.broker.config import BrokerConfig
from penstock.broker.network.admission import Admission, CallLater
from penstock.broker.network.client_connection import IDLE, Connection
from penstock.broker.network.closing_order import ClosingOrder
from penstock.broker.network.connection import RECEIVE_BYTES
from penstock.broker.network.dispatcher import Dispatcher
from penstock.broker.network.handshake_order import HandshakeOrder
from penstock.broker.network.request_memory import RequestMemory
from penstock.broker.network.request_meter import RequestMeter
from penstock.broker.network.wake_limit import WAKE_BYTES
from penstock.broker.quotas.connections import (
    Connections,
    ConnectionSettings,
    ListenerLimits,
    parse_overrides,
)
from penstock.broker.quotas.rates import Window
from penstock.broker.security.access import ClientAccess

log = structlog.get_logger(__name__)

BACKLOG_COUNT: Final = 4_096
"""Maximum number of clients that can connect at the same moment, for example after a failover.
Linux drops the packets of additional clients, which then retry a second later. By default, it does
not allow a larger backlog (net.core.somaxconn).
"""
SWEEP_INTERVAL_S: Final = 5.0


class Server:
    """All connections of one broker. The constructor requires a running event loop. Requests are
    handled once `serve` is called.

    Memory is limited by requests in flight and unsent responses per connection, and by request
    bytes per principal and in total (`broker.network.request_memory`). Unauthenticated connections
    are limited in number, time and frame size.
    """

    def __init__(
        self,
        config: BrokerConfig,
        access: ClientAccess | None = None,
        *,
        sweep_interval_s: float = SWEEP_INTERVAL_S,
        call_later: CallLater | None = None,
    ) -> None:
        """access: how clients authenticate; None for listeners without authentication. call_later:
        schedules the end of throttling; None for `loop.call_later`.
        """
        self.config = config
        self.access = access or ClientAccess()
        self.loop = asyncio.get_running_loop()
        self.call_later: CallLater = call_later or self.loop.call_later
        self.admission = Admission(
            Connections(Window(config.quota_window_num, config.quota_window_size_seconds * 1_000)),
            self.loop.time,
            self.call_later,
        )
        self.muted: set[Connection] = set()
        """Connections that are muted because of a quota."""
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.tls_buffer = memoryview(bytearray(WAKE_BYTES))
        self.handshakes = HandshakeOrder(
            self.loop.call_soon, self.loop.call_later, time.perf_counter
        )
        self.closings = ClosingOrder(self.loop.call_soon)
        self.ports: dict[str, int] = {}
        """The bound port of each listener, by name."""
        self.memory = RequestMemory(self.loop.call_soon)
        self.received_bytes = 0
        self.sent_bytes = 0
        self.closed_count = 0
        """Number of connections that the broker has dropped for a logged reason. The log is rate
        limited, so it may not contain all of them.
        """
        self.requests = RequestMeter()
        self.on_closed: Callable[[int], None] | None = None
        """Called with the id of each connection that has closed."""
        self._dispatcher: Dispatcher | None = None
        self._listeners: list[asyncio.Server] = []
        self._is_closed = False
        self._connections: set[Connection] = set()
        self._connection_count = 0
        self._dispatcher_waiters: dict[Connection, None] = {}
        self._unsent: list[Connection] = []
        """Connections with responses to send in this event loop iteration."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_limit = LogLimit()
        self._sweep_interval_s = sweep_interval_s
        self.reconfigure(config)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply these settings from now on."""
        self.config = config
        self.memory.configure(
            config.buffered_request_bytes_max,
            config.buffered_principal_percent,
            config.request_bytes_max,
        )
        names = [bound.name for bound in config.bound]
        inter_broker = self.access.config.inter_broker_listener_name.upper() or names[0]
        self.admission.configure(
            ConnectionSettings(
                broker=ListenerLimits(config.connections_max, config.connection_creation_rate_max),
                listeners={name: config.limits_of(name) for name in names},
                unauthenticated=self.access.config.unauthenticated_connections_max,
                per_address=config.connections_per_ip_max,
                by_address=parse_overrides(config.connections_per_ip_overrides),
                protected=inter_broker if len(names) > 1 else "",
            )
        )

    @property
    def dispatcher(self) -> Dispatcher:
        assert self._dispatcher is not None, "serve() comes before the first connection"
        return self._dispatcher

    @property
    def port(self) -> int:
        """Return the port of the first listener, or 0 before `bind`."""
        return next(iter(self.ports.values()), 0)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def unauthenticated_count(self) -> int:
        return self.admission.unauthenticated_count

    @property
    def accepted_count(self) -> int:
        """Return the number of connections accepted since the start."""
        return self._connection_count

    async def bind(self) -> int:
        """Bind the ports, so that they can be registered, but do not listen yet. Clients whose
        connection is refused connect to another broker. Returns the port of the first listener.

        Raises PortTaken.
        """
        protocols = self.access.config.protocols([bound.name for bound in self.config.bound])
        for bound in self.config.bound:
            make = partial(self._connection, bound.name, protocols[bound.name])
            try:
                # As in Kafka, an empty host binds all addresses.
                listener = await self.loop.create_server(
                    make, bound.host or None, bound.port, backlog=BACKLOG_COUNT, start_serving=False
                )
            except OSError as error:
                raise PortTaken(bound.host, bound.port, error) from error
            self._listeners.append(listener)
            self.ports[bound.name] = int(listener.sockets[0].getsockname()[1])
        return self.port

    async def serve(self, dispatcher: Dispatcher) -> None:
        """Accept connections. Raises PortTaken if another process has started listening on a port
        since `bind`.
        """
        assert self._listeners, "bind() comes first"
        self._dispatcher = dispatcher
        for bound, listener in zip(self.config.bound, self._listeners, strict=True):
            try:
                await start_listening(listener, BACKLOG_COUNT)
            except OSError as error:
                raise PortTaken(bound.host, self.ports[bound.name], error) from error
        self._spawn(self._sweep())

    async def stop_accepting(self) -> None:
        while self._listeners:
            await stop_listening(self._listeners.pop())

    async def close(self) -> None:
        self._is_closed = True
        await self.stop_accepting()
        self.admission.close()
        for connection in list(self._connections):
            connection.close_quietly()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- callbacks of connections -----------------------------------------------------------------

    def add(self, connection: Connection) -> None:
        """Register a new connection, which is admitted when its listener has room. A connection
        that was accepted just before `close` is closed.
        """
        if self._is_closed:
            connection.close_quietly()
            return
        self._connections.add(connection)
        self.admission.arrive(connection)

    def authenticated(self, connection: Connection) -> None:
        self.admission.authenticated(connection)

    def remove(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.admission.gone(connection)
        self.memory.forget(connection)
        self._dispatcher_waiters.pop(connection, None)
        if self.on_closed is not None:
            self.on_closed(connection.id)

    def wait_for_dispatcher(self, connection: Connection) -> None:
        if not self._dispatcher_waiters:
            self._spawn(self._resume_when_unblocked())
        self._dispatcher_waiters[connection] = None

    def flush_soon(self, connection: Connection) -> None:
        """Flush the connection in the next event loop iteration. A single callback flushes all
        connections, because one WAL object acknowledges requests of many connections.
        """
        if not self._unsent:
            self.loop.call_soon(self._flush_all)
        self._unsent.append(connection)

    def _flush_all(self) -> None:
        connections, self._unsent = self._unsent, []
        for at, connection in enumerate(connections):
            try:
                connection.flush()
            except BaseException:
                # The event loop reports the error. Other connections must still be flushed.
                self._unsent += connections[at + 1 :]
                self.loop.call_soon(self._flush_all)
                raise

    def log_closed(self, connection: Connection, reason: str) -> None:
        self.closed_count += 1
        suppressed = self._log_limit.take(self.loop.time())
        if suppressed is not None:
            # Idle connections are routine: brokers watch each other over idle connections.
            report = log.info if reason == IDLE else log.warning
            report(
                "connection_refused",
                peer=connection.peer,
                listener=connection.listener,
                reason=reason,
                suppressed_count=suppressed,
            )

    # --- background -------------------------------------------------------------------------------

    def _connection(self, listener: str, protocol: SecurityProtocol) -> Connection:
        self._connection_count += 1
        return Connection(self, self._connection_count, listener, protocol)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resume_when_unblocked(self) -> None:
        await self.dispatcher.wait_unblocked()
        waiters = list(self._dispatcher_waiters)
        self._dispatcher_waiters.clear()
        for connection in waiters:
            connection.pump()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_interval_s)
            now = self.loop.time()
            for connection in list(self._connections):
                reason = connection.expired(now)
                if reason is not None:
                    connection.close(reason)
                connection.drain_received(now)


class PortTaken(Exception):
    """Raised when the port of a listener is not available. The message explains the remedy."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(
            f"cannot listen on {host}:{port} ({cause.strerror or cause}): choose another port in"
            " listeners (0 selects a free one)"
        )
        self.port = port
