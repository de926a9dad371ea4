"""Measure client quota usage on this broker, and compute throttle times. Pure; times are in
milliseconds. Measuring takes about 1 us for a tracked client, regardless of the number of quotas.

As in Kafka, each broker enforces quotas separately, except for partition mutations, which the
controller measures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

from penstock.broker.quotas.rates import Rate, Window
from penstock.controller.metadata.quota_scopes import Scope, resolve, scope_of
from penstock.controller.metadata.quotas import (
    CLIENT_QUOTAS,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Entity,
    QuotasImage,
)

CLIENTS_MAX: Final = 10_000
"""Maximum number of tracked pairs of user and client id. Each uses about 6 KB if it has its own
quotas.
"""
CLIENT_ID_CHARS_MAX: Final = 256
"""Longer client ids are truncated in quotas, usage and member ids."""
IDLE_MS: Final = 3_600_000
"""Idle time after which a client is dropped, as in Kafka."""
_FRESH_MS: Final = 1_000
"""Maximum inaccuracy of the last-use order of clients. Allowing it keeps the hot path short."""
PERCENT_PER_S: Final = 100.0


class _Meter:
    """The usage of all clients that share a quota. It exists as long as one of these clients is
    tracked.
    """

    __slots__ = ("__weakref__", "use")

    def __init__(self, use: Rate) -> None:
        self.use = use


class Limit:
    """A quota that applies to one client. bound: in the unit of the quota."""

    __slots__ = ("_meter", "bound", "use")

    def __init__(self, bound: float, meter: _Meter) -> None:
        self.bound = bound
        self.use = meter.use
        self._meter = meter


class Client:
    """A user with a client id, and the quotas that apply to them."""

    __slots__ = (
        "consumer",
        "generation",
        "has_mutation_rate",
        "is_limited",
        "producer",
        "request",
        "used_ms",
    )

    def __init__(self, now_ms: float) -> None:
        self.generation = -1
        self.is_limited = False
        self.used_ms = now_ms
        self.producer: Limit | None = None
        self.consumer: Limit | None = None
        self.request: Limit | None = None
        self.has_mutation_rate = False
        """Whether the client has a quota for partition mutations, which the controller measures."""


@dataclass(slots=True)
class Throttles:
    """How often and for how long clients were throttled by one quota."""

    count: int = 0
    total_ms: int = 0


class ClientQuotas:
    """The quotas of users and clients on one broker. Only clients with a quota are tracked. A
    client is dropped after `IDLE_MS`, and if there are more than `CLIENTS_MAX` clients, the one
    that has been idle longest is dropped; a dropped client restarts with an unused quota. Measured
    usage is kept when quotas change.
    """

    def __init__(self, window: Window) -> None:
        self.is_active = False
        """Whether any user or client has a quota."""
        self.window = window
        self.throttles = {key: Throttles() for key in CLIENT_QUOTAS}
        self._quotas: dict[str, dict[Scope, float]] = {key: {} for key in CLIENT_QUOTAS}
        self._generation = 0
        self._clients: dict[tuple[str, str], Client] = {}
        """Ordered by last use, accurate to `_FRESH_MS`."""
        self._rates: WeakValueDictionary[tuple[str, Scope], _Meter] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return the number of tracked clients."""
        return len(self._clients)

    def reset(self, image: QuotasImage) -> None:
        """Replace all quotas."""
        for quotas in self._quotas.values():
            quotas.clear()
        for entity, values in image.items():
            self._set(entity, values)
        self._changed()

    def change(self, image: QuotasImage, entities: set[Entity]) -> None:
        """Apply the quotas of the changed entities."""
        for entity in entities:
            self._set(entity, image.of(entity))
        self._changed()

    def _set(self, entity: Entity, values: Mapping[str, float]) -> None:
        scope = scope_of(entity)
        if scope is None:
            return
        for key, quotas in self._quotas.items():
            if key in values:
                quotas[scope] = values[key]
            else:
                quotas.pop(scope, None)

    def _changed(self) -> None:
        self._generation += 1
        self.is_active = any(self._quotas.values())
        if not self.is_active:
            self._clients.clear()

    def client(self, user: str, client_id: str, now_ms: float) -> Client:
        """Return the state of a client, with its current quotas."""
        client_id = client_id[:CLIENT_ID_CHARS_MAX]
        name = user, client_id
        client = self._clients.get(name)
        if client is None:
            self._make_room(now_ms)
            client = self._clients[name] = Client(now_ms)
        elif now_ms - client.used_ms >= _FRESH_MS:
            self._clients[name] = self._clients.pop(name)
            client.used_ms = now_ms
        if client.generation != self._generation:
            self._resolve(client, user, client_id, now_ms)
        return client

    def _make_room(self, now_ms: float) -> None:
        """Drop up to two clients, so that clients are dropped faster than they are added."""
        for name in list(islice(self._clients, 2)):
            is_idle = now_ms - self._clients[name].used_ms >= IDLE_MS
            if not is_idle and len(self._clients) < CLIENTS_MAX:
                return
            del self._clients[name]

    def _resolve(self, client: Client, user: str, client_id: str, now_ms: float) -> None:
        def rate(key: str) -> Limit | None:
            found = resolve(self._quotas[key].get, user, client_id)
            if found is None:
                return None
            scope, bound = found
            meter = self._rates.get((key, scope))
            if meter is None:
                meter = self._rates[key, scope] = _Meter(Rate(self.window, now_ms))
            return Limit(bound, meter)

        client.producer = rate(PRODUCER_BYTE_RATE)
        client.consumer = rate(CONSUMER_BYTE_RATE)
        client.request = rate(REQUEST_PERCENTAGE)
        mutation_rates = self._quotas[CONTROLLER_MUTATION_RATE]
        client.has_mutation_rate = resolve(mutation_rates.get, user, client_id) is not None
        limits = client.producer, client.consumer, client.request
        client.is_limited = client.has_mutation_rate or any(limit is not None for limit in limits)
        client.generation = self._generation


class RequestQuota:
    """Measures one request against the client's quotas. Time is measured from when the broker
    starts to process the request.

    Call the methods for the kind of request, and then `settle` when the response is complete;
    `produced` and `fetched` call it themselves. The longest throttle time is used.
    """

    __slots__ = (
        "_busy_clock",
        "_busy_s",
        "_client",
        "_clock",
        "_is_settled",
        "_is_working",
        "_key",  # always set together with the throttle time
        "_quotas",
        "throttle_ms",
    )

    def __init__(
        self,
        quotas: ClientQuotas,
        client: Client,
        clock: Callable[[], float],
        busy_clock: Callable[[], float],
    ) -> None:
        """clock: in seconds. busy_clock: in seconds, and precise enough to measure a single
        request.
        """
        self._quotas = quotas
        self._client = client
        self._clock = clock
        self._busy_clock = busy_clock
        self._is_settled = False
        self._is_working = True
        self.throttle_ms = 0
        self._busy_s = -busy_clock()
        """Busy time so far; while the broker is working on the request, the current start time is
        subtracted.
        """

    # --- time -------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Record that the broker resumes work on the request."""
        if not self._is_working:
            self._is_working = True
            self._busy_s -= self._busy_clock()

    def leave(self) -> None:
        """Record that the broker switches to other work."""
        if self._is_working:
            self._is_working = False
            self._busy_s += self._busy_clock()

    def worked(self, seconds: float) -> None:
        """Record that a thread worked on the request for this long."""
        self._busy_s += seconds

    def settle(self) -> int:
        """Record the time used by the request, and return its throttle time in milliseconds. Only
        the first call records anything.
        """
        if not self._is_settled:
            self._settle(self._clock() * 1_000)
        return self.throttle_ms

    def _settle(self, now_ms: float, *, counts_time: bool = True) -> None:
        self._is_settled = True
        limit = self._client.request
        if limit is not None and counts_time:
            busy_s = self._busy_s + self._busy_clock() if self._is_working else self._busy_s
            wait_ms = limit.use.add(busy_s * PERCENT_PER_S, limit.bound, now_ms)
            if wait_ms:
                # At most one sample, as in Kafka, because the request time does not depend on the
                # client alone.
                self._wait(REQUEST_PERCENTAGE, min(wait_ms, self._quotas.window.size_ms))
        if self.throttle_ms:
            throttles = self._quotas.throttles[self._key]
            throttles.count += 1
            throttles.total_ms += self.throttle_ms

    # --- bytes ------------------------------------------------------------------------------------

    def produced(self, size_bytes: int, *, has_response: bool = True) -> int:
        """Record a Produce request and return its throttle time. As in Kafka, the time of a request
        without a response is not counted.
        """
        now_ms = self._clock() * 1_000
        limit = self._client.producer
        if limit is not None:
            wait_ms = limit.use.add(size_bytes, limit.bound, now_ms)
            if wait_ms:
                self._wait(PRODUCER_BYTE_RATE, wait_ms)
        self._settle(now_ms, counts_time=has_response)
        return self.throttle_ms

    def fetch_bytes_max(self, wanted_bytes: int) -> int:
        """Return the maximum size of a response. Responses larger than the window allows would
        always be throttled.
        """
        limit = self._client.consumer
        if limit is None:
            return wanted_bytes
        window = self._quotas.window
        return min(wanted_bytes, int(limit.bound * (window.samples - 1) * window.size_ms / 1_000))

    def fetched(self, size_bytes: int) -> int:
        """Record a response with records, and the time used so far. Return the throttle time; if it
        is not 0, the response must contain no records, and the bytes are not counted.
        """
        self.sent(size_bytes)
        throttle_ms = self.settle()
        limit = self._client.consumer
        if throttle_ms and limit is not None:
            limit.use.record(-size_bytes, self._clock() * 1_000)
        return throttle_ms

    def sent(self, size_bytes: int) -> None:
        """Record bytes that the client receives even if it is throttled, because a share group has
        already locked the records for it.
        """
        limit = self._client.consumer
        if limit is not None:
            wait_ms = limit.use.add(size_bytes, limit.bound, self._clock() * 1_000)
            self._wait(CONSUMER_BYTE_RATE, wait_ms)

    # --- controller mutations -----------------------------------------------------------------

    @property
    def has_mutation_rate(self) -> bool:
        return self._client.has_mutation_rate

    def changed(self, wait_ms: int) -> None:
        """Record the throttle time that the controller computed."""
        self._wait(CONTROLLER_MUTATION_RATE, wait_ms)

    def _wait(self, key: str, wait_ms: int) -> None:
        if wait_ms > self.throttle_ms:
            self.throttle_ms, self._key = wait_ms, key
