"""Notice within milliseconds that the process of another broker has died.

A killed process closes its sockets, so an idle connection to it breaks before its clients ask
another broker for the next leader. The controller fences the dead broker only after the grace of
its session. Until then Metadata would name it, and librdkafka, for one, asks again a second later.

Invariant: a broker counts as gone only while its address refuses connections after a connection to
it broke, and for at most GONE_MAX_S. A reset alone, a timeout and an unreachable network prove
nothing. Being gone decides which leader clients are sent to, never who leads: a firewall may refuse
connections to a broker that lives.
Limits: one idle connection per broker to each other broker; one attempt per PROBE_S to reach a
broker whose connection broke.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from base.ids import NodeId
from broker.network.peers import PeerConnections, PeerGone
from broker.wire.errors import WireError
from controller.metadata.delta import MetadataDelta
from stream.ports import BrokerIncarnation

if TYPE_CHECKING:
    from controller.metadata.image import MetadataImage

GONE_MAX_S: Final = 10.0
"""The controller has fenced a dead broker long before."""
PROBE_S: Final = 0.1
_DYING_S: Final = 0.01
RECONNECT_MIN_S: Final = 0.2
RECONNECT_MAX_S: Final = 10.0
_SOON_COUNT: Final = 50
"""A broker registers a moment before it accepts connections, so the first attempts follow quickly.
One that cannot be reached from here costs an attempt per RECONNECT_MAX_S.
"""


class PeerWatch:
    """Hold the connections. Subscribe `on_batch` to the image; `close` ends them."""

    def __init__(
        self,
        node_id: NodeId,
        peers: PeerConnections,
        on_change: Callable[[BrokerIncarnation], None],
    ) -> None:
        """node_id: this broker, which is not watched. on_change: called when a broker becomes gone
        or is back. Must not block or raise.
        """
        self._node_id = node_id
        self._peers = peers
        self._on_change = on_change
        self._watches: dict[BrokerIncarnation, asyncio.Task[None]] = {}
        self._gone: set[BrokerIncarnation] = set()

    @property
    def gone(self) -> Collection[BrokerIncarnation]:
        """Return the brokers whose process has died, as far as this broker can see. Never one that
        is fenced: the image says so.
        """
        return self._gone

    def on_batch(self, delta: MetadataDelta, image: "MetadataImage") -> None:
        """Watch the brokers of the image that are not fenced."""
        if not (delta.everything or delta.node_ids):
            return
        wanted = {
            BrokerIncarnation(node.node_id, node.node_epoch)
            for node in image.nodes
            if not node.fenced and node.node_id != self._node_id
        }
        for peer in self._watches.keys() - wanted:
            self._watches.pop(peer).cancel()
            self._gone.discard(peer)
        for peer in wanted - self._watches.keys():
            self._watches[peer] = asyncio.get_running_loop().create_task(self._watch(peer))

    async def close(self) -> None:
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)
        self._peers.close()

    async def _watch(self, peer: BrokerIncarnation) -> None:
        failed_count, was_connected = 0, False
        while True:
            try:
                await self._peers.wait_closed(peer.node_id)
            except (OSError, EOFError, TimeoutError, WireError, PeerGone):
                failed_count += 1  # unless it was connected, this proves nothing
            else:
                failed_count, was_connected = 0, True
            if was_connected:
                was_connected = await self._probe(peer)
            is_soon = failed_count < _SOON_COUNT
            await asyncio.sleep(RECONNECT_MIN_S if is_soon else RECONNECT_MAX_S)

    async def _probe(self, peer: BrokerIncarnation) -> bool:
        """Count the broker as gone while its address refuses connections. A process that dies may
        close its connections a moment before its listener. Returns False if the broker is to be
        connected first before it can be gone again.
        """
        try:
            async with asyncio.timeout(GONE_MAX_S):
                if not await self._peers.refuses(peer.node_id):
                    await asyncio.sleep(_DYING_S)
                while await self._peers.refuses(peer.node_id):
                    if peer not in self._gone:
                        self._gone.add(peer)
                        self._on_change(peer)
                    await asyncio.sleep(PROBE_S)
        except (TimeoutError, PeerGone):
            return False
        finally:
            if peer in self._gone:
                self._gone.discard(peer)
                self._on_change(peer)
        return True
