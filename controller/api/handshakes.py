"""Count TLS handshakes on a controller's port, and connections with calls.

gRPC does not report failed handshakes. A handshake without a later call was a peer without a valid
certificate or without TLS, a port probe, or a peer that sent no request.
"""

import asyncio
import threading
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

PEERS_MAX: Final = 10_000
LOOK_INTERVAL_S: Final = 60.0
"""Longer than gRPC's timeout for a handshake (`HANDSHAKE_TIMEOUT_S` of
`controller.api.transport`).
"""


class HandshakeCounts:
    """Counters that never decrease. At most PEERS_MAX addresses are kept; with more open
    connections, a call on a dropped one is counted again. `begun` is called from gRPC's threads,
    the rest from one thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun_count = 0
        self._peers: dict[str, None] = {}
        """Addresses of connections with calls, ordered by their last call."""
        self._connected_count = 0
        self._settled_count = 0
        """Handshakes that had begun at the last check: they are over at the next one."""
        self._reported_count = 0

    @property
    def begun_count(self) -> int:
        """Handshakes that began."""
        return self._begun_count

    @property
    def connected_count(self) -> int:
        """Connections that carried at least one call."""
        return self._connected_count

    def begun(self) -> None:
        """Record that a handshake begins."""
        with self._lock:
            self._begun_count += 1

    def called(self, peer: str) -> None:
        """Record a call. peer: address and port of the caller."""
        peers = self._peers
        if peer in peers:
            del peers[peer]
        else:
            self._connected_count += 1
            if len(peers) >= PEERS_MAX:
                del peers[next(iter(peers))]
        peers[peer] = None

    def look(self) -> int:
        """Return the number of handshakes that ended without a call since the last check. Call it
        every LOOK_INTERVAL_S.
        """
        missing_count = self._settled_count - self._connected_count - self._reported_count
        self._settled_count = self._begun_count
        self._reported_count += max(0, missing_count)
        return max(0, missing_count)

    async def watch(self, interval_s: float = LOOK_INTERVAL_S) -> None:
        """Log such handshakes, at most once per interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            if count := self.look():
                _log.warning(
                    "handshakes_without_rpc",
                    count=count,
                    next="set GRPC_VERBOSITY=INFO to see why each handshake fails",
                )
