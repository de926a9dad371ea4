"""A cache of registered schemas by id for readers in threads. The schema of an id never changes.

Invariants: while the registry is unavailable, requests are retried for up to `retry_ms`, after
which the error is raised. NotRegistered is raised only if the registry reports that an id is not
registered.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from random import Random
from threading import Lock
from typing import Final, TypeVar

from penstock.base.backoff import Backoff
from penstock.base.slow_calls import SlowCalls, slow_calls_of, watched
from penstock.protocol.registry.client import SchemaRegistry
from penstock.protocol.registry.model import NotRegistered, RegistryUnavailable, StoredSchema
from penstock.protocol.registry.settings import RegistrySettings
from penstock.protocol.registry.wire_format import SchemaKey

CACHED_COUNT_MAX: Final = 1_000
CACHED_CHARS_MAX: Final = 64 << 20
UNKNOWN_S: Final = 30.0
"""Time after which an unregistered id is requested again."""

_FIRST_MS: Final = 200
_LONGEST_MS: Final = 4_000
_REGISTRIES_MAX: Final = 8
_Found = TypeVar("_Found")


class SchemasById:
    """The schemas of one registry. Thread-safe; lookups are serialized."""

    def __init__(
        self,
        registry: SchemaRegistry,
        retry_s: float,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        slow: SlowCalls | None = None,
    ) -> None:
        """slow: reports slow calls; None disables this."""
        self._registry = registry
        self._retry_s = retry_s
        self._now_s, self._sleep = now_s, sleep
        self._slow = slow
        self._lock = Lock()
        self._known: OrderedDict[SchemaKey, StoredSchema | tuple[str, float]] = OrderedDict()
        """Schemas by id, or the reason why there is none and the time of the response."""
        self._chars = 0
        self._failed: tuple[str, float] = ("", now_s())
        """The reason and the time of the last failure."""

    def find(self, number: SchemaKey, since_s: float = -math.inf) -> StoredSchema:
        """Return the schema with an id or a GUID. Raise NotRegistered, or RegistryError if this
        cannot be determined.

        since_s: an id that was not registered before this time is requested again.
        """
        known = self._known.get(number)
        if isinstance(known, StoredSchema):
            return known
        requested_s = self._now_s()
        with self._lock:
            return self._find(number, requested_s, since_s)

    def finder(self) -> Callable[[SchemaKey], StoredSchema]:
        """Return `find` for records that exist now, whose schemas may have been registered since
        the registry reported that they are not.
        """
        return partial(self.find, since_s=self._now_s())

    def newest(self, subject: str) -> tuple[int, StoredSchema]:
        """Return the newest schema of a subject and its id, as currently registered. Raise
        NotRegistered, RegistryError.
        """
        requested_s = self._now_s()
        with self._lock:
            number, schema = self._retried(lambda: self._registry.newest(subject), requested_s)
            self._keep(number, schema)
            return number, schema

    def _find(self, number: SchemaKey, requested_s: float, since_s: float) -> StoredSchema:
        known = self._known.get(number)
        if isinstance(known, StoredSchema):
            self._known.move_to_end(number)
            return known
        if known is not None and since_s <= known[1] and self._now_s() < known[1] + UNKNOWN_S:
            raise NotRegistered(known[0])
        try:
            schema = self._retried(lambda: self._requested(number), requested_s)
        except NotRegistered as error:
            self._keep(number, (str(error), self._now_s()))
            raise
        self._keep(number, schema)
        return schema

    def _requested(self, number: SchemaKey) -> StoredSchema:
        if isinstance(number, str):
            return self._registry.by_guid(number)
        return self._registry.by_id(number)

    def _retried(self, request: Callable[[], _Found], requested_s: float) -> _Found:
        """Retry a request. requested_s: the time when this thread started waiting; if another
        request has failed since then, its error is raised immediately.
        """
        reason, failed_s = self._failed
        if requested_s < failed_s:
            raise RegistryUnavailable(reason)
        deadline_s = self._now_s() + self._retry_s
        backoff = Backoff(_FIRST_MS, _LONGEST_MS, Random())  # noqa: S311 - jitter
        with watched(self._slow):
            while True:
                try:
                    return request()
                except RegistryUnavailable as error:
                    pause_s = backoff.next_s()
                    if self._now_s() + pause_s > deadline_s:
                        self._failed = str(error), self._now_s()
                        raise
                    self._sleep(pause_s)

    def _keep(self, number: SchemaKey, found: StoredSchema | tuple[str, float]) -> None:
        self._chars += _chars(found) - _chars(self._known.pop(number, None))
        self._known[number] = found
        while len(self._known) > CACHED_COUNT_MAX or self._chars > CACHED_CHARS_MAX:
            self._chars -= _chars(self._known.popitem(last=False)[1])


def _chars(found: StoredSchema | tuple[str, float] | None) -> int:
    if not isinstance(found, StoredSchema):
        return 0
    return len(found.text) + sum(len(text) for _, text in found.references)


@lru_cache(_REGISTRIES_MAX)
def schemas_of(settings: RegistrySettings) -> SchemasById:
    """Return the cache of this process for a registry. Raise RegistrySettingInvalid."""
    registry = settings.connect()
    slow = slow_calls_of(f"the schema registry at {registry.url}")
    return SchemasById(registry, settings.retry_ms / 1_000, slow=slow)
