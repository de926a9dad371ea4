"""Detect producers whose settings limit their throughput on an object store, where a response takes
about 100 ms.

Pure, with constant work per request and none per record. At most CONNECTIONS_MAX connections are
watched at a time, and the most recent CLIENTS_MAX detected clients are remembered.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONNECTIONS_MAX: Final = 1_000
CLIENTS_MAX: Final = 100
CLIENT_ID_CHARS_MAX: Final = 100
WINDOW_S: Final = 10.0
"""How long a connection is observed before it is evaluated."""
LISTED_S: Final = 600.0
"""How long a client is listed after it was last detected."""
REQUESTS_MIN: Final = 50
SLOW_S: Final = 0.02
"""Mean response time from which settings matter. Responses with in-memory and local stores are
faster.
"""
IN_FLIGHT: Final = 5
"""Maximum number of in-flight requests per connection for idempotent producers, which is also the
Java client's default.
"""
BATCH_BYTES: Final = 256 << 10
LINGER_MS: Final = 50
SMALL: Final = 0.25
"""Requests below this share of BATCH_BYTES count as small."""
FULL: Final = 0.8
"""A connection is saturated if IN_FLIGHT requests are in flight for this share of the time."""
MOST: Final = 0.8
"""Minimum share of requests with a single batch."""
FEW_RECORDS: Final = 10.0
"""With at most this many records per batch, a producer effectively does not batch."""


@dataclass(frozen=True, slots=True)
class Advice:
    """settings: client settings that would help. reason: what was observed, and how much the
    settings would help.
    """

    settings: str
    reason: str


@dataclass(frozen=True, slots=True)
class UntunedProducer:
    """A client with settings that limit its throughput. since_s, seen_s: when it was first and last
    detected.
    """

    client_id: str
    host: str
    advice: Advice
    since_s: float
    seen_s: float


@dataclass(slots=True)
class Window:
    """Statistics of one connection since began_s. singles: requests with a single batch. records:
    number of records in these requests. full_s: time with IN_FLIGHT pending requests, up to
    full_at. peak: maximum number of pending requests. waited_s: sum of the response times of
    `ended` requests.
    """

    client_id: str
    host: str
    began_s: float
    open: int = 0
    requests: int = 0
    size_bytes: int = 0
    singles: int = 0
    records: int = 0
    full_s: float = 0.0
    full_at: float | None = None
    peak: int = 0
    ended: int = 0
    waited_s: float = 0.0

    def restarted(self, now_s: float) -> "Window":
        full_at = None if self.full_at is None else now_s
        return Window(self.client_id, self.host, now_s, self.open, full_at=full_at)

    def full_share(self, elapsed_s: float) -> float:
        since = 0.0 if self.full_at is None else self.began_s + elapsed_s - self.full_at
        return (self.full_s + since) / elapsed_s


class ProducerWatch:
    """The producers of one broker."""

    def __init__(self) -> None:
        self._windows: dict[int, Window] = {}
        self._known: OrderedDict[tuple[str, str], UntunedProducer] = OrderedDict()

    def began(
        self,
        connection: int,
        client_id: str,
        host: str,
        now_s: float,
        *,
        size_bytes: int,
        records: int | None,
    ) -> None:
        """Count a request. records: the number of records in its only batch, or None if it has
        several batches.
        """
        window = self._windows.get(connection)
        if window is None:
            if len(self._windows) >= CONNECTIONS_MAX:
                return
            window = Window(client_id[:CLIENT_ID_CHARS_MAX], host, now_s)
            self._windows[connection] = window
        window.requests += 1
        window.size_bytes += size_bytes
        window.open += 1
        if window.open == IN_FLIGHT:
            window.full_at = now_s
        window.peak = max(window.peak, window.open)
        if records is not None:
            window.singles += 1
            window.records += records

    def ended(self, connection: int, now_s: float, took_s: float) -> None:
        """Count a response."""
        window = self._windows.get(connection)
        if window is not None and window.open:
            window.open -= 1
            window.ended += 1
            if window.full_at is not None and window.open < IN_FLIGHT:
                window.full_s += now_s - window.full_at
                window.full_at = None
            window.waited_s += took_s

    def judge(self, now_s: float) -> list[UntunedProducer]:
        """Evaluate the connections that were observed for WINDOW_S. Return clients that were not
        reported before. Call this regularly.
        """
        found: list[UntunedProducer] = []
        for connection, window in list(self._windows.items()):
            elapsed_s = now_s - window.began_s
            if elapsed_s < WINDOW_S:
                continue
            if window.requests:
                self._windows[connection] = window.restarted(now_s)
            else:
                del self._windows[connection]
            advice = advice_for(window, elapsed_s)
            if advice is not None:
                found += self._note(window, advice, now_s)
        return found

    def listed(self, now_s: float) -> Sequence[UntunedProducer]:
        """Return the clients that were recently detected."""
        return [client for client in self._known.values() if now_s - client.seen_s <= LISTED_S]

    def _note(self, window: Window, advice: Advice, now_s: float) -> list[UntunedProducer]:
        key = (window.client_id, window.host)
        known = self._known.get(key)
        since_s = now_s if known is None else known.since_s
        client = UntunedProducer(window.client_id, window.host, advice, since_s, now_s)
        self._known[key] = client
        self._known.move_to_end(key)
        while len(self._known) > CLIENTS_MAX:
            self._known.popitem(last=False)
        return [client] if known is None else []


def advice_for(window: Window, elapsed_s: float) -> Advice | None:
    """Return settings that would help a producer, or None if its settings do not limit it."""
    if window.requests < REQUESTS_MIN or not window.ended:
        return None
    took_s = window.waited_s / window.ended
    if took_s < SLOW_S:
        return None
    rate, size_bytes = window.requests / elapsed_s, window.size_bytes / window.requests
    is_full = window.full_share(elapsed_s) >= FULL and window.peak <= IN_FLIGHT
    if is_full and size_bytes < SMALL * BATCH_BYTES:
        return Advice(
            f"batch.size={BATCH_BYTES} linger.ms={LINGER_MS}",
            f"it waits for responses: {IN_FLIGHT} requests of {size_bytes / 1_000:,.1f} kB are"
            f" in flight most of the time, and a response takes {took_s * 1_000:,.0f} ms, so it"
            f" sends {rate * size_bytes / 1_000:,.0f} kB/s; requests of {BATCH_BYTES / 1_000:,.0f}"
            f" kB allow up to {IN_FLIGHT * BATCH_BYTES / took_s / 1_000:,.0f} kB/s",
        )
    lingering = 1_000 / LINGER_MS
    is_single = window.singles >= MOST * window.requests
    if is_single and rate >= 2 * lingering and window.records <= FEW_RECORDS * window.singles:
        return Advice(
            f"linger.ms={LINGER_MS}",
            f"it sends {rate:,.0f} requests/s with {window.records / window.singles:.1f} records"
            f" each; with this setting about {lingering:,.0f} requests/s contain the same records",
        )
    return None
