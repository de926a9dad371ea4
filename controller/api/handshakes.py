"""Count TLS handshakes and connections with calls on a controller's port.

gRPC does not report failed handshakes. A handshake without a later call comes from a peer without a
valid certificate or without TLS, from a port probe, or from a peer that sent no request.
"""

import asyncio
import threading
from typing import Final

import structlog

_log = structlog.get_logger(__name__)

PEERS_MAX: Final = 10_000
LOOK_INTERVAL_S: Final = 60.0
"""Interval between checks. It is longer than gRPC's handshake timeout (`HANDSHAKE_TIMEOUT_S` of
`controller.api.transport`).
"""


class HandshakeCounts:
    """Counters, which never decrease. At most PEERS_MAX addresses are kept; with more open
    connections, a dropped one is counted again at its next call. `begun` is called from gRPC's
    threads, all other methods from one thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun_count = 0
        self._peers: dict[str, None] = {}
        """Addresses of connections with calls, in the order of their last call."""
        self._connected_count = 0
        self._settled_count = 0
        """Number of handshakes that had started at the last check. They have completed by the next
        check.
        """
        self._reported_count = 0

    @property
    def begun_count(self) -> int:
        """Number of handshakes that have started."""
        return self._begun_count

    @property
    def connected_count(self) -> int:
        """Number of connections with at least one call."""
        return self._connected_count

    def begun(self) -> None:
        """Record that a handshake has started."""
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
        """Return the number of handshakes without a later call since the last check. Call this
        every LOOK_INTERVAL_S.
        """
        missing_count = self._settled_count - self._connected_count - self._reported_count
        self._settled_count = self._begun_count
        self._reported_count += max(0, missing_count)
        return max(0, missing_count)

    async def watch(self, interval_s: float = LOOK_INTERVAL_S) -> None:
        """Log handshakes without a later call, at most once per interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            if count := self.look():
                _log.warning(
                    "handshakes_without_rpc",
                    count=count,
                    next="set GRPC_VERBOSITY=INFO to see why each handshake fails",
                )
