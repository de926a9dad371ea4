"""Count the TLS handshakes on a controller's port, and the connections on which calls came.

gRPC does not say which handshakes failed: it asks for the certificate when one begins, and shows a
connection with its first call. What began and was never followed by a call was a stranger, a peer
with a wrong certificate or without TLS, a port probe, or a peer that had nothing to ask.

Invariants: counts only grow. Memory: PEERS_MAX addresses; when more connections are open, a call on
a forgotten one counts it again. `begun` is called from gRPC's threads, the rest from one thread.
"""

import asyncio
import threading
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

PEERS_MAX: Final = 10_000
LOOK_INTERVAL_S: Final = 60.0
"""Longer than gRPC gives a handshake (`HANDSHAKE_TIMEOUT_S` of `controller.api.transport`)."""


class HandshakeCounts:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun_count = 0
        self._peers: dict[str, None] = {}
        """Addresses of connections with calls, the one of the newest call last."""
        self._connected_count = 0
        self._settled_count = 0
        """Handshakes that had begun at the last look: they are over at the next one."""
        self._told_count = 0

    @property
    def begun_count(self) -> int:
        """Handshakes that began."""
        return self._begun_count

    @property
    def connected_count(self) -> int:
        """Connections on which a call came."""
        return self._connected_count

    def begun(self) -> None:
        """Note that a handshake begins."""
        with self._lock:
            self._begun_count += 1

    def called(self, peer: str) -> None:
        """Note a call. peer: address and port of the caller."""
        peers = self._peers
        if peer in peers:
            del peers[peer]
        else:
            self._connected_count += 1
            if len(peers) >= PEERS_MAX:
                del peers[next(iter(peers))]
        peers[peer] = None

    def look(self) -> int:
        """Return how many more handshakes are over without a call since the last look. Call it each
        LOOK_INTERVAL_S.
        """
        missing_count = self._settled_count - self._connected_count - self._told_count
        self._settled_count = self._begun_count
        self._told_count += max(0, missing_count)
        return max(0, missing_count)

    async def watch(self, interval_s: float = LOOK_INTERVAL_S) -> None:
        """Log such handshakes, one line in each interval at most, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            if count := self.look():
                _log.warning(
                    "handshakes_without_call",
                    count=count,
                    next="set GRPC_VERBOSITY=INFO to see why each handshake fails",
                )
