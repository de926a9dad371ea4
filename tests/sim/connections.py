"""A connection to one process of a broker, like TCP: requests arrive in order, or it breaks.

A client that stops waiting for a response closes the connection. The broker detects that after the
request and cancels running work, as `broker.network.connection` does. Requests are Kafka frames and
pass through the real dispatcher.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.base.ids import NodeEpoch, NodeId
from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.network.peers import PeerConnections, PeerGone
from penstock.protocol import framing
from penstock.protocol.codecs import CODECS
from penstock.protocol.errors import WireError
from tests.sim.frames import connection_info, decode_response
from tests.sim.loop import PROCESS

if TYPE_CHECKING:
    from tests.sim.nodes import SimBroker
    from tests.sim.world import World


class NoResponse(Exception):
    """The connection broke, or the response was late. The request may have been executed."""


class Connection:
    def __init__(self, world: "World", broker: "SimBroker") -> None:
        self.broker = broker
        self.id = next(world.connection_ids)
        self.is_broken = False
        self._is_cut = False
        """A packet was lost, or the broker closed it: nothing sent later is
        processed.
        """
        self._world = world
        process = PROCESS.get()
        self._link = "client" if process is None else process.link
        self._info = connection_info(self.id)
        self._arrival_s = 0.0
        self._running: list[asyncio.Task[None]] = []

    async def send_request(self, api: Any, version: int, message: Any, timeout_s: float) -> Any:
        """Send a request. Raises NoResponse."""
        frame = framing.encode_request_frame(
            api, version, 1, CODECS[api.key].encode_request, message
        )[framing.SIZE_BYTES :]
        response: asyncio.Future[Any] = self._world.loop.create_future()
        self._travel(self._arrive, bytes(frame), response)
        try:
            async with asyncio.timeout(timeout_s):
                return decode_response(api, version, await response)
        except TimeoutError:
            self.close()
            raise NoResponse from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. The broker sees that after everything sent before."""
        if not self.is_broken:
            self.is_broken = True
            self._travel(self.broker.deliver, self._cancel)

    def _travel(self, what: Any, *args: Any) -> None:
        """Send to the broker's machine, after everything sent before."""
        now_s = self._world.loop.time()
        self._arrival_s = max(self._arrival_s, now_s + self._world.network.delay_s())
        self._world.later(self._arrival_s - now_s, what, *args)

    def _arrive(self, frame: bytes, response: "asyncio.Future[Any]") -> None:
        network, broker = self._world.network, self.broker
        if self._is_cut or network.links.blocked(self._link, broker.process.link):
            self._is_cut = True
            return
        if broker.process.dead or network.chance():
            self._reset(response)
        else:
            broker.deliver(self._start, frame, response)

    def _start(self, frame: bytes, reply: "asyncio.Future[Any]") -> None:
        """Run in the broker's process."""
        broker = self.broker
        if self._is_cut or not broker.serving:
            self._reset(reply)
            return
        try:
            coroutine = broker.dispatcher.start(
                self._info, bytearray(frame), lambda response: self._back(reply, response)
            )
        except (WireError, CannotRespond):
            self._hang_up(reply)
            return
        if coroutine is not None:
            self._running = [task for task in self._running if not task.done()]
            self._running.append(self._world.loop.create_task(self._finish(coroutine, reply)))

    async def _finish(self, coroutine: Any, response: "asyncio.Future[Any]") -> None:
        try:
            self._back(response, await coroutine)
        except (WireError, CannotRespond):
            self._hang_up(response)

    def _hang_up(self, response: "asyncio.Future[Any]") -> None:
        """Close the connection as the broker does."""
        self._reset(response)
        self.broker.on_connection_closed(self.id)

    def _reset(self, response: "asyncio.Future[Any]") -> None:
        self._is_cut = True
        self._back(response, None)

    def _cancel(self) -> None:
        """Handle a client disconnect. The request just before it may or may not have had its first
        step.
        """
        for task in self._running:
            self._world.loop.call_later(self._world.network.rng.choice((0, 0.001)), task.cancel)
        self.broker.on_connection_closed(self.id)

    def _back(self, reply: "asyncio.Future[Any]", response: Any) -> None:
        """Send the response, or reset the connection if None."""
        network = self._world.network
        if network.links.blocked(self.broker.process.link, self._link):
            return

        def arrive() -> None:
            if reply.done():
                return
            if response is None:
                reply.set_exception(NoResponse())
            else:
                reply.set_result(response)

        if network.chance():
            response = None
        self._world.later(network.delay_s(), arrive)


class SimPeers(PeerConnections):
    """Queries other brokers over the simulated network; everything except the sockets is the real
    class.
    """

    def __init__(self, world: "World", broker: "SimBroker") -> None:
        super().__init__(lambda: broker.image)
        self._world = world
        self._broker = broker
        self._connections: dict[NodeId, tuple[NodeEpoch, Connection]] = {}

    async def send_request(
        self, node_id: NodeId, api: Any, version: int, request: object, kind: type[Any]
    ) -> Any:
        state = self._broker.image.nodes.get(node_id)
        if state is None:
            raise PeerGone(f"broker {node_id} is not registered")
        epoch, connection = self._connections.get(node_id, (None, None))
        if connection is None or connection.is_broken or epoch != state.node_epoch:
            target = self._world.brokers.get(node_id)
            if target is None:
                raise ConnectionRefusedError
            connection = self._world.connect(target)
            self._connections[node_id] = (state.node_epoch, connection)
        try:
            return await connection.send_request(api, version, request, 60)
        except NoResponse as error:
            raise ConnectionResetError from error
