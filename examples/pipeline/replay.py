"""Write real flights as a stream of events: all flights that left New York in 2013, in the order in
which they left, so canceled flights and long delays arrive late. Also write carriers and,
occasionally, an invalid record.
"""

import itertools
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.deploy.demo.flights import read_flights
from penstock.protocol.registry.wire_format import frame
from pipeline.config import CARRIERS, CLEAN, DEAD, RAW

PARTITIONS = 4
BAD_EVERY = 500
HOUR_MS = 3_600_000
RENAMED = ("US", "American Airlines")
"""US Airways and American Airlines merged in December 2013."""


class Event(NamedTuple):
    key: bytes
    timestamp_ms: int
    value: bytes | None
    is_valid: bool


@dataclass
class Sent:
    """The acknowledged records, which the pipeline must process. hours: valid flights by hour of
    scheduled departure and carrier.
    """

    valid: int = 0
    bad: int = 0
    hours: Counter[tuple[int, str]] = field(default_factory=Counter)

    def add(self, event: Event) -> None:
        if event.is_valid:
            self.valid += 1
            self.hours[event.timestamp_ms // HOUR_MS, event.key.decode()] += 1
        else:
            self.bad += 1


def events(flights: int, bad_every: int = BAD_EVERY) -> Iterator[Event]:
    """Yield the first flights of the year, and an invalid record after every `bad_every`
    flights.
    """
    damages = itertools.cycle(DAMAGES)
    for number, (key, timestamp_ms, value) in enumerate(read_flights(flights), 1):
        yield Event(key, timestamp_ms, value, is_valid=True)
        if number % bad_every == 0:
            yield Event(key, timestamp_ms, _damaged(value, next(damages)), is_valid=False)


DAMAGES: tuple[dict[str, object] | None, ...] = (
    {},
    None,
    {"carrier": None},
    {"distance": "far"},
    {"origin": "BOS"},
    {"distance": -1},
)
"""How invalid records are damaged: the fields to replace. {} truncates the value, None removes
it.
"""


def _damaged(value: bytes, damage: dict[str, object] | None) -> bytes | None:
    if damage is None:
        return None
    return json.dumps(json.loads(value) | damage).encode() if damage else value[: len(value) // 2]


def create_topics(bootstrap: str) -> None:
    """Create the topics, without time-based retention, because the flights are from 2013."""
    forever = {"retention.ms": "-1"}
    wanted = [NewTopic(name, PARTITIONS, config=forever) for name in (RAW, CLEAN, DEAD)]
    wanted.append(NewTopic(CARRIERS, 1, config={"cleanup.policy": "compact"}))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(wanted).values():
        created.result()


def register_schema(schema_registry: str) -> int:
    """Register the schema of the raw topic, and return its id."""
    schema = files("pipeline.schemas").joinpath("flight.json").read_text()
    request = urllib.request.Request(  # noqa: S310 - the URL is a setting
        f"{schema_registry}/subjects/{RAW}-value/versions",
        json.dumps({"schema": schema, "schemaType": "JSON"}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=180) as response:  # noqa: S310
        return int(json.load(response)["id"])


class Replay:
    """A producer, which counts acknowledged records in `sent`. With a schema registry, flights
    begin with the id of their schema.
    """

    def __init__(self, bootstrap: str, schema_registry: str = "") -> None:
        self.sent = Sent()
        self._prefix = frame(register_schema(schema_registry)) if schema_registry else b""
        # The producer is idempotent, so that a retry after the crash of a broker does not write a
        # record twice.
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 50,
                "compression.type": "lz4",
                "log_level": 2,
            }
        )

    def send(self, events: Iterator[Event]) -> None:
        """Send the events, and wait until all are acknowledged."""
        for event in events:
            value = None if event.value is None else self._prefix + event.value
            self._produce(RAW, event.key, value, event.timestamp_ms)
            self.sent.add(event)
        self._flush()

    def send_carriers(self, names: dict[str, str]) -> None:
        for code, name in names.items():
            self._produce(CARRIERS, code.encode(), json.dumps({"name": name}).encode())
        self._flush()

    def _produce(
        self, topic: str, key: bytes, value: bytes | None, timestamp_ms: int | None = None
    ) -> None:
        at = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=_raise, **at)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def _flush(self) -> None:
        if left := self._producer.flush(600):
            raise SystemExit(f"{left:,} records were not acknowledged within 10 minutes")


def _raise(error: object, _message: object) -> None:
    if error is not None:
        raise SystemExit(f"a record was not acknowledged: {error}")
