"""Decide which new connections a broker accepts, and when, like Kafka's `ConnectionQuotas`
(KIP-402, KIP-612). Pure; times are in milliseconds. Each connection takes O(1).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from penstock.broker.quotas.rates import Rate, Window

ADDRESSES_MAX: Final = 20_000
UNLIMITED: Final = (1 << 31) - 1
"""Kafka's default for all these limits."""


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Connection limits for one listener or for the whole broker. creation_rate: per second."""

    connections: int = UNLIMITED
    creation_rate: int = UNLIMITED


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """protected: the inter-broker listener; empty if there is no other listener. unauthenticated:
    maximum number of connections per listener that are in a TLS handshake or SASL authentication.
    """

    broker: ListenerLimits = ListenerLimits()
    listeners: Mapping[str, ListenerLimits] = field(default_factory=dict[str, ListenerLimits])
    unauthenticated: int = UNLIMITED
    per_address: int = UNLIMITED
    by_address: Mapping[str, int] = field(default_factory=dict[str, int])
    protected: str = ""

    def of(self, listener: str) -> ListenerLimits:
        return self.listeners.get(listener, _UNLIMITED)


_UNLIMITED: Final = ListenerLimits()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a connection is closed, and the delay before that. The delay prevents clients
    from retrying immediately.
    """

    reason: str
    after_ms: int = 0


class Connections:
    """The connections of one broker.

    A listener that is full or exceeds its rate accepts no connections for a while, and new ones
    wait in order. Connections from an address that connects too fast or has too many are rejected.
    As in Kafka, the inter-broker listener may exceed the broker's limit if there is another
    listener: the connection of that listener that has been idle longest is then closed. Rates are
    tracked for at most `ADDRESSES_MAX` addresses with a quota.
    """

    def __init__(self, window: Window) -> None:
        self.settings = ConnectionSettings()
        self.total_count = 0
        self._window = window
        self._by_listener: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._broker_rate: Rate | None = None
        self._listener_rates: dict[str, Rate] = {}
        self._address_quotas: Mapping[str, float] = {}
        self._default_address_quota: float | None = None
        self._address_rates: dict[str, Rate] = {}
        """Rates by address, in last-use order."""

    def set_address_quotas(self, by_address: Mapping[str, float], default: float | None) -> None:
        """Set the number of connections per second that each address may create. None means
        unlimited.
        """
        self._address_quotas = by_address
        self._default_address_quota = default

    # --- listeners --------------------------------------------------------------------------------

    def arrived(self, listener: str, now_ms: int) -> int:
        """Record a new connection. Return how long its listener must accept no connections, in
        milliseconds, at most one sample.
        """
        settings = self.settings
        wait_ms = 0
        own = settings.of(listener).creation_rate
        if own < UNLIMITED:
            rate = self._listener_rates.get(listener)
            if rate is None:
                rate = self._listener_rates[listener] = Rate(self._window, now_ms)
            wait_ms = self._record(rate, own, now_ms)
        if settings.broker.creation_rate < UNLIMITED and listener != settings.protected:
            if self._broker_rate is None:
                self._broker_rate = Rate(self._window, now_ms)
            common_ms = self._record(self._broker_rate, settings.broker.creation_rate, now_ms)
            wait_ms = max(wait_ms, common_ms)
        return wait_ms

    def has_room(self, listener: str) -> bool:
        settings = self.settings
        return self.has_room_of_its_own(listener) and (
            listener == settings.protected or self.total_count < settings.broker.connections
        )

    def has_room_of_its_own(self, listener: str) -> bool:
        """Return whether the listener is below its own connection limit."""
        return self._by_listener[listener] < self.settings.of(listener).connections

    @property
    def is_over(self) -> bool:
        """Return whether a connection must be closed to make room for a broker."""
        return self.total_count > self.settings.broker.connections

    # --- addresses --------------------------------------------------------------------------------

    def enter(self, listener: str, address: str, now_ms: int) -> Refusal | None:
        """Accept a connection, or return the reason for rejecting it."""
        refusal = self._refusal_by_rate(address, now_ms)
        if refusal is not None:
            return refusal
        settings = self.settings
        allowed = settings.by_address.get(address, settings.per_address)
        if self._by_address[address] >= allowed:
            if not self._by_address[address]:
                del self._by_address[address]
            return Refusal(
                f"more than {allowed} connections of one address (max.connections.per.ip)"
            )
        self._by_address[address] += 1
        self._by_listener[listener] += 1
        self.total_count += 1
        return None

    def leave(self, listener: str, address: str) -> None:
        self.total_count -= 1
        self._by_listener[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _refusal_by_rate(self, address: str, now_ms: int) -> Refusal | None:
        bound = self._address_quotas.get(address, self._default_address_quota)
        if bound is None:
            return None
        rate = self._address_rates.pop(address, None) or Rate(self._window, now_ms)
        while len(self._address_rates) >= ADDRESSES_MAX:
            del self._address_rates[next(iter(self._address_rates))]
        self._address_rates[address] = rate
        wait_ms = self._record(rate, bound, now_ms)
        if not wait_ms:
            return None
        rate.record(-1, now_ms)
        return Refusal("the address connects too often (quota connection_creation_rate)", wait_ms)

    def _record(self, rate: Rate, bound: float, now_ms: int) -> int:
        if bound <= 0:
            return self._window.size_ms
        return min(rate.add(1, bound, now_ms), self._window.size_ms)


def parse_overrides(items: Sequence[str]) -> dict[str, int]:
    """Parse overrides of the form `address:count`. Raises ValueError."""
    found: dict[str, int] = {}
    for item in items:
        host, colon, count = item.rpartition(":")
        if not (colon and count.isascii() and count.isdigit()):
            raise ValueError(f"{item!r} is not ADDRESS:COUNT")
        found[str(ip_address(host.strip("[]")))] = int(count)
    return found
