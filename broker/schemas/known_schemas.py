"""A cache of registered schemas by id. The schema with a given id never changes.

Cached schemas remain usable while the registry is unavailable. After a failure, no requests are
sent for PAUSE_S.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from penstock.broker.schemas.language import ReferencedSchema
from penstock.broker.schemas.messages import RegisteredSchema
from penstock.protocol.registry.client import SchemaRegistry
from penstock.protocol.registry.model import NotRegistered, RegistryError

KNOWN_COUNT_MAX: Final = 1_000
LOOKUPS_MAX: Final = 100
THREADS_COUNT: Final = 4
FRESH_S: Final = 2.0
PAUSE_S: Final = 1.0
_NONE: Final = RegisteredSchema("")


class _Known(NamedTuple):
    schema: RegisteredSchema
    at_s: float


class KnownSchemas:
    """The schemas of one registry, at most KNOWN_COUNT_MAX. An unknown id is requested at most once
    per FRESH_S, so that a producer with a wrong id causes little load. When a schema is registered
    under another subject, it becomes valid for that subject within FRESH_S.
    """

    def __init__(self, registry: SchemaRegistry, now_s: Callable[[], float]) -> None:
        """now_s: a monotonic clock."""
        self._registry = registry
        self._now_s = now_s
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._lookups: dict[int, asyncio.Task[RegisteredSchema]] = {}
        self._threads = ThreadPoolExecutor(THREADS_COUNT, thread_name_prefix="schema-registry")
        self._paused_until_s = 0.0
        self._failure = ""

    def close(self) -> None:
        for lookup in self._lookups.values():
            lookup.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def find(self, numbers: Iterable[int]) -> dict[int, RegisteredSchema]:
        """Return the schemas of these ids, at most FRESH_S old. If the registry does not respond,
        older copies are returned. Raises RegistryError if an unknown schema cannot be requested.
        """
        found: dict[int, RegisteredSchema] = {}
        waiting: dict[int, asyncio.Task[RegisteredSchema]] = {}
        for number in numbers:
            known = self._known.get(number)
            if known is not None and self._now_s() - known.at_s < FRESH_S:
                found[number] = known.schema
            else:
                waiting[number] = self._lookup(number)
        for number, lookup in waiting.items():
            try:
                found[number] = await asyncio.shield(lookup)
            except RegistryError:
                stale = self._known.get(number)
                if stale is None or not stale.schema.type:
                    raise
                found[number] = stale.schema
        return found

    def _lookup(self, number: int) -> "asyncio.Task[RegisteredSchema]":
        lookup = self._lookups.get(number)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(self._looked_up(number))
            self._lookups[number] = lookup
            lookup.add_done_callback(lambda done: self._settled(number, done))
        return lookup

    def _settled(self, number: int, done: "asyncio.Task[RegisteredSchema]") -> None:
        del self._lookups[number]
        if not done.cancelled():
            done.exception()  # mark the exception as retrieved, because no caller may be waiting

    async def _looked_up(self, number: int) -> RegisteredSchema:
        if self._now_s() < self._paused_until_s:
            raise RegistryError(self._failure)
        if len(self._lookups) > LOOKUPS_MAX:
            raise RegistryError(f"{LOOKUPS_MAX} requests to the schema registry are waiting")
        known = self._known.get(number)
        run = asyncio.get_running_loop().run_in_executor
        try:
            schema = await run(self._threads, self._send_request, number, known)
        except RegistryError as error:
            self._paused_until_s = self._now_s() + PAUSE_S
            self._failure = str(error)
            raise
        self._known[number] = _Known(schema, self._now_s())
        self._known.move_to_end(number)
        if len(self._known) > KNOWN_COUNT_MAX:
            self._known.popitem(last=False)
        return schema

    def _send_request(self, number: int, known: _Known | None) -> RegisteredSchema:
        """Request a schema, or only its subjects if the schema is known. Runs in a thread."""
        try:
            subjects = tuple(self._registry.subjects_of(number))
            if known is not None and known.schema.type:
                old = known.schema
                return RegisteredSchema(old.type, old.schema, old.references, subjects)
            text = self._registry.by_id(number)
        except NotRegistered:
            return _NONE
        references = tuple(ReferencedSchema(name, schema) for name, schema in text.references)
        return RegisteredSchema(text.type.lower(), text.text, references, subjects)
