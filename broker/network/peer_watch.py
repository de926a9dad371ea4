"""Detect within milliseconds that the process of another broker has died.

The kernel closes the sockets of a killed process, so an idle connection to it breaks before clients
look up the next leader. The controller fences the dead broker only after the session timeout. Until
then, Metadata would still list it, and librdkafka would retry only a second later.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from penstock.base.ids import NodeId
from penstock.broker.network.peers import PeerConnections, PeerGone
from penstock.controller.metadata.delta import MetadataDelta
from penstock.protocol.errors import WireError
from penstock.stream.ports import BrokerIncarnation

if TYPE_CHECKING:
    from penstock.controller.metadata.image import MetadataImage

_log = structlog.get_logger(__name__)

GONE_MAX_S: Final = 10.0
"""How long a broker may be considered gone. By then, the controller has long since fenced a dead
broker.
"""
PROBE_S: Final = 0.1
DOUBT_S: Final = 0.05
"""How long a broker may be in doubt. A killed process closes its connections, newest first, and
then its listener, within 3 ms on a busy machine. If a live broker closes a connection, responses
are delayed for the same time.
"""
_NEXT_TURNS_S: Final = 0.001
RECONNECT_MIN_S: Final = 0.2
RECONNECT_MAX_S: Final = 10.0
_SOON_COUNT: Final = 50
"""Number of fast connection attempts. A broker registers just before it accepts connections, so the
first attempts should be frequent. After these attempts, an unreachable broker costs one attempt per
RECONNECT_MAX_S.
"""


class PeerWatch:
    """Maintains an idle connection to each other broker. Subscribe `on_batch` to the image; `close`
    closes the connections.

    A broker is considered gone only while its address refuses connections after a connection to it
    broke, for at most GONE_MAX_S. A reset alone, a timeout or an unreachable network is not
    sufficient. This affects only the leader that is returned to clients, never the election,
    because a firewall may refuse connections to a live broker. While the connection is broken but
    the address still accepts, the broker is in doubt, and responses that may list it are delayed,
    at most for DOUBT_S.
    """

    def __init__(
        self,
        node_id: NodeId,
        peers: PeerConnections,
        on_change: Callable[[BrokerIncarnation], None],
    ) -> None:
        """node_id: the id of this broker, which is not watched. on_change: called when a broker
        process dies or returns; must not block or raise.
        """
        self._node_id = node_id
        self._peers = peers
        self._on_change = on_change
        self._watches: dict[BrokerIncarnation, asyncio.Task[None]] = {}
        self._gone: set[BrokerIncarnation] = set()
        self._doubted: set[BrokerIncarnation] = set()
        self._certain = asyncio.Event()
        self._certain.set()

    @property
    def gone(self) -> Collection[BrokerIncarnation]:
        """Return the brokers whose processes have died, as far as this broker can tell. Fenced
        brokers are never included.
        """
        return self._gone

    def is_in_doubt(self) -> bool:
        """Return whether a broker may have just died."""
        return bool(self._doubted or self._peers.has_broken())

    async def until_certain(self) -> None:
        """Wait until no broker is in doubt, at most for DOUBT_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DOUBT_S):
                while self.is_in_doubt():
                    if self._doubted:
                        await self._certain.wait()
                    else:
                        # The watch task will process the broken connection in a later iteration.
                        await asyncio.sleep(_NEXT_TURNS_S)

    def on_batch(self, delta: MetadataDelta, image: "MetadataImage") -> None:
        """Watch the brokers in the image that are not fenced."""
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
                failed_count += 1  # this proves nothing unless the broker was connected before
            else:
                failed_count, was_connected = 0, True
            if was_connected:
                was_connected = await self._probe(peer)
            is_soon = failed_count < _SOON_COUNT
            await asyncio.sleep(RECONNECT_MIN_S if is_soon else RECONNECT_MAX_S)

    async def _probe(self, peer: BrokerIncarnation) -> bool:
        """Mark the broker as gone while its address refuses connections. Return False if a
        connection must succeed before the broker can be marked again.
        """
        self._doubted.add(peer)
        self._certain.clear()
        try:
            async with asyncio.timeout(GONE_MAX_S):
                refuses = await self._peers.refuses(peer.node_id, patience_s=DOUBT_S)
                while refuses:
                    if peer not in self._gone:
                        self._gone.add(peer)
                        self._end_doubt(peer)
                        _log.info("peer_died", node_id=peer.node_id, node_epoch=peer.node_epoch)
                        self._on_change(peer)
                    await asyncio.sleep(PROBE_S)
                    refuses = await self._peers.refuses(peer.node_id)
        except (TimeoutError, PeerGone):
            return False
        finally:
            self._end_doubt(peer)
            if peer in self._gone:
                self._gone.discard(peer)
                self._on_change(peer)
        return True

    def _end_doubt(self, peer: BrokerIncarnation) -> None:
        self._doubted.discard(peer)
        if not self._doubted:
            self._certain.set()
