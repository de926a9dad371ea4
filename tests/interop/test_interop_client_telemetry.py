"""Clients that push metrics (KIP-714) get the same responses from Apache Kafka 4.2 and Penstock.

A Kafka plugin writes the metrics to a file. Penstock deliberately requests cumulative values,
rejects payloads that are not MetricsData, and limits decompressed metrics.
"""

import asyncio
import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric, MetricsData

from benchmarks.kafka import LIGHT_JVM, kafka
from penstock.protocol.batch.compression import Compression, compress
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs, describe_configs_of
from tests.support.java import JavaHome
from tests.support.otlp_receiver import OtlpReceiver, metrics_of, serving
from tests.support.telemetry_client import (
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
    ZERO,
    Subscriptions,
    TelemetryClient,
)
from tests.support.waiting import PATIENCE_S, wait_until

CLIENT_METRICS = 16
NODE_ID = 1
MAX_BYTES = 20_000
RESERVED = UUID(int=1)
LONG_MS, SHORT_MS = 300_000, 100
"""Push intervals: one that no test waits for, and the shortest."""
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


def _metrics(name: str) -> bytes:
    """Return the payload of a client with one gauge."""
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = name
    metric.gauge.data_points.add().as_int = 1
    return data.SerializeToString()


ONE = _metrics("one")


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pushes") / "pushes.jsonl"


@pytest.fixture(scope="module")
def telemetry_peer(java: JavaHome, pushes: Path) -> Iterator[str]:
    """Run Kafka with the plugin and return its address. The plugin writes to `pushes`."""
    java.compile(Path(__file__).parent / "telemetry" / "TelemetryFile.java")
    settings = {
        "metric.reporters": "TelemetryFile",
        "telemetry.file": str(pushes),
        "telemetry.max.bytes": str(MAX_BYTES),
    }
    with kafka(settings, plugins=str(java.directory), jvm=LIGHT_JVM) as process:
        yield process.bootstrap


Received: TypeAlias = Callable[[str, str], list[Metric]]


class Side:
    """Kafka or Penstock."""

    def __init__(self, address: str, received: Received) -> None:
        """received: returns the metrics received so far from clients with this `client_id` or
        `client_instance_id`.
        """
        self.address = address
        self.received = received
        self._names: set[str] = set()

    def received_names(self, instance: UUID) -> list[str]:
        return [metric.name for metric in self.received("client_instance_id", kafkas(instance))]

    def subscribe(
        self,
        name: str,
        metrics: str | None = None,
        interval_ms: str | None = None,
        match: str | None = None,
    ) -> tuple[int, str | None]:
        """Set a subscription, or delete it if all values are None. Return the error code and
        message.
        """
        self._names.add(name)
        values = {"metrics": metrics, "interval.ms": interval_ms, "match": match}
        return alter_configs(self.address, (CLIENT_METRICS, name), values)

    def wait_for_metadata(self) -> None:
        """Wait until the broker applies the subscription. Kafka may show a config before it applies
        it, but applies it before it shows the next one.
        """
        for _ in range(2):
            mark = uuid4().hex
            assert self.subscribe("mark", mark, match=f"client_id={mark}") == (0, None)
            wait_until(partial(self._shows, "mark", mark))

    def _shows(self, name: str, metrics: str) -> bool:
        shown = describe_configs_of(self.address, (CLIENT_METRICS, name), "metrics")
        return bool(shown["metrics"]["value"] == metrics)

    def clear(self) -> None:
        """Delete all subscriptions of this test, and wait until this has taken effect."""
        for name in self._names - {"mark"}:
            self.subscribe(name)
        self.wait_for_metadata()
        self.subscribe("mark")


def _received_by_kafka(pushes: Path, key: str, value: str) -> list[Metric]:
    lines = pushes.read_text().splitlines() if pushes.exists() else []
    found = [json.loads(line) for line in lines]
    return [
        metric
        for push in found
        if push[key] == value
        for metric in _decoded(b64decode(push["data"]))
    ]


def _received_by_penstock(receiver: OtlpReceiver, key: str, value: str) -> list[Metric]:
    return [
        metric
        for attributes, metrics in list(receiver.resources())
        if attributes[key] == value
        for metric in metrics
    ]


def kafkas(instance: UUID) -> str:
    """Return an instance id in the form of Kafka clients."""
    return urlsafe_b64encode(instance.bytes).decode().rstrip("=")


def _decoded(data: bytes) -> list[Metric]:
    return [
        metric
        for resource in MetricsData.FromString(data).resource_metrics
        for metric in metrics_of(resource)
    ]


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides, and the receiver of Penstock's metrics."""

    java: JavaHome
    cluster: Cluster
    kafka: Side
    penstock: Side
    receiver: OtlpReceiver

    async def run(self, script: Callable[[Side], Any]) -> tuple[Any, Any]:
        """Run a script against both sides at the same time."""
        return await asyncio.gather(
            asyncio.to_thread(script, self.kafka), asyncio.to_thread(script, self.penstock)
        )

    async def compare(self, script: Callable[[Side], Any]) -> Any:
        """Run a script against both sides, check that the results are equal, and return them."""
        expected, found = await self.run(script)
        assert found == expected
        return found


@pytest.fixture
async def sides(
    java: JavaHome, telemetry_peer: str, pushes: Path, tmp_path: Path
) -> AsyncIterator[Sides]:
    async with serving(OtlpReceiver()) as receiver:
        cluster = Cluster(
            tmp_path,
            brokers=0,
            client_metrics_otlp_endpoint=f"http://127.0.0.1:{receiver.port}",
            telemetry_max_bytes=MAX_BYTES,
        )
        async with cluster:
            await cluster.start_broker(NODE_ID)
            first = Side(telemetry_peer, partial(_received_by_kafka, pushes))
            second = Side(cluster.bootstrap, partial(_received_by_penstock, receiver))
            yield Sides(java, cluster, first, second, receiver)
            await asyncio.to_thread(first.clear)


def _shown(response: Subscriptions) -> dict[str, Any]:
    """Return the fields that do not depend on the client, with the metrics sorted."""
    shown = asdict(response)
    shown["client_instance_id"] = response.client_instance_id != ZERO
    shown["subscription_id"] = response.subscription_id != 0
    shown["requested_metrics"] = sorted(response.requested_metrics)
    del shown["delta_temporality"]
    return shown


# Sequences of requests of one client


@dataclass(frozen=True, slots=True)
class Push:
    """A push. knows: whether the client sends the right subscription id."""

    knows: bool = True
    metrics: bytes = ONE
    compression: int = 0
    terminating: bool = False


GET, CHANGE, CHANGE_OTHERS = "get", "change", "change others"
"""Changes of the client's subscription, and of one that does not match it."""
Step: TypeAlias = Push | str
PUSH = Push()
EMPTY = Push(metrics=b"")
WRONG = Push(knows=False)
UNKNOWN_TYPE = Push(compression=7)
BROKEN = Push(metrics=b"broken", compression=Compression.GZIP)
LARGE = Push(metrics=bytes(MAX_BYTES + 1))
ALL_WRONG = Push(knows=False, metrics=bytes(MAX_BYTES + 1), compression=7)
LARGE_UNKNOWN_TYPE = Push(metrics=bytes(MAX_BYTES + 1), compression=7)
LARGE_BROKEN = Push(metrics=bytes(MAX_BYTES + 1), compression=Compression.GZIP)
LAST = Push(terminating=True)
LAST_WRONG = Push(knows=False, terminating=True)
LAST_UNKNOWN_TYPE = Push(compression=7, terminating=True)
LAST_ALL_WRONG = Push(knows=False, metrics=bytes(MAX_BYTES + 1), compression=7, terminating=True)
SEQUENCES: tuple[tuple[Step, ...], ...] = (
    (GET, GET),
    (PUSH, PUSH, GET),
    (EMPTY, EMPTY, GET),
    (WRONG, GET, GET),
    (WRONG, GET, PUSH, GET),
    (WRONG, PUSH, GET),
    (WRONG, WRONG, GET),
    (UNKNOWN_TYPE, GET, GET),
    (UNKNOWN_TYPE, PUSH, GET),
    (BROKEN, GET, PUSH),
    (LARGE, GET, PUSH),
    # Precedence of errors.
    (ALL_WRONG, ALL_WRONG),
    (LARGE_UNKNOWN_TYPE,),
    (LARGE_BROKEN,),
    # A terminating push is accepted at any time, and affects the response to the next one.
    (LAST, PUSH, GET, PUSH, LAST, GET),
    (LAST, ALL_WRONG, ALL_WRONG),
    (LAST, LAST, LAST, PUSH, PUSH),
    (LAST, GET, EMPTY),
    (PUSH, LAST, PUSH, PUSH),
    (PUSH, LAST_ALL_WRONG, PUSH),
    (PUSH, LAST_UNKNOWN_TYPE, GET, PUSH),
    (LAST_WRONG, GET, PUSH, PUSH),
    (LAST_WRONG, LAST),
    # A change of any subscription starts over.
    (CHANGE, GET, PUSH, PUSH, GET),
    (CHANGE, WRONG, GET, PUSH),
    (PUSH, CHANGE, GET, GET),
    (PUSH, CHANGE, PUSH, GET, PUSH),
    (PUSH, CHANGE_OTHERS, GET, PUSH),
    (PUSH, CHANGE_OTHERS, PUSH, GET),
    (LAST, CHANGE_OTHERS, PUSH, PUSH),
)


def _responses(side: Side) -> list[list[int]]:
    """Return the error codes of each sequence, including that of the client's first request."""
    return [_codes(side, steps) for steps in SEQUENCES]


def _codes(side: Side, steps: Sequence[Step]) -> list[int]:
    side.subscribe("all", "one", str(LONG_MS))
    side.wait_for_metadata()
    with TelemetryClient(side.address) as client:
        got = client.get()
        instance, subscription_id = got.client_instance_id, got.subscription_id
        codes = [got.error_code]
        for step in steps:
            if isinstance(step, Push):
                codes.append(_pushed(client, step, instance, subscription_id))
            elif step == GET:
                got = client.get(instance)
                codes.append(got.error_code)
                subscription_id = got.subscription_id or subscription_id
            else:
                name, match = ("all", None) if step == CHANGE else ("others", "client_id=nobody")
                side.subscribe(name, uuid4().hex, str(LONG_MS), match)
                side.wait_for_metadata()
    return codes


def _pushed(client: TelemetryClient, push: Push, instance: UUID, subscription_id: int) -> int:
    return client.push(
        instance,
        subscription_id if push.knows else subscription_id ^ 1,
        push.metrics,
        terminating=push.terminating,
        compression_type=push.compression,
    )


async def test_request_sequences_of_a_client_are_handled_as_by_kafka(sides: Sides) -> None:
    """No push interval elapses during a sequence."""
    expected, found = await sides.run(_responses)
    for steps, kafkas_codes, codes in zip(SEQUENCES, expected, found, strict=True):
        assert codes == kafkas_codes, steps
    assert {code for codes in expected for code in codes} == {0, 42, 76, 87, 89, 117, 118}


def _after_intervals(side: Side) -> list[int]:
    side.subscribe("all", "one", str(SHORT_MS))
    side.wait_for_metadata()
    with TelemetryClient(side.address) as client:
        first = client.get()
        known = (first.client_instance_id, first.subscription_id)
        unknown = (first.client_instance_id, first.subscription_id ^ 1)
        wait_until(lambda: client.get(known[0]).error_code == 0)
        codes = [client.push(*known, ONE)]
        wait_until(lambda: client.push(*known, ONE) == 0)
        wait_until(lambda: client.push(*unknown, ONE) == 117)
        wait_until(lambda: client.push(*known, ONE) == 0)
        codes.append(client.push(*known, ONE, terminating=True))
        wait_until(lambda: client.get(known[0]).error_code == 0)
        codes.append(client.push(*known, ONE))
        wait_until(lambda: client.push(*known, ONE) == 0)
    return codes


async def test_clients_may_push_again_after_the_interval_as_in_kafka(sides: Sides) -> None:
    """Requesting the subscription again does not undo a terminating push."""
    assert await sides.compare(_after_intervals) == [0, 0, 42]


# Clients and subscriptions


def _first_responses(side: Side) -> list[Any]:
    """Return the responses to clients without an instance id, and to those that send one."""
    brought, late = uuid4(), uuid4()
    with TelemetryClient(side.address) as client:
        responses = [client.get(instance) for instance in (ZERO, ZERO, RESERVED, brought)]
        assert responses[0].client_instance_id != responses[1].client_instance_id
        assert responses[0].client_instance_id.version == 4
        assert [response.client_instance_id for response in responses[2:]] == [RESERVED, brought]
        refused = client.get(brought)
        codes = [client.push(instance, 0, ONE) for instance in (ZERO, RESERVED, uuid4())]
        codes += [client.push(late, 7, ONE), client.push(late, 7, ONE), client.get(late).error_code]
    return [*map(_shown, responses), asdict(refused), codes]


async def test_clients_without_subscriptions_get_the_response_of_kafka(sides: Sides) -> None:
    found = await sides.compare(_first_responses)
    assert found[0]["push_interval_ms"] == LONG_MS
    assert found[0]["accepted_compression_types"] == (4, 3, 1, 2)
    assert found[-1] == [42, 42, 117, 117, 89, 89]


SUBSCRIPTIONS: tuple[dict[str, tuple[str | None, str | None, str | None]], ...] = (
    {"a": ("b,a,a,c", "1000", None)},
    {"a": ("b,a", "1000", None), "b": ("a,d,org.apache.kafka.producer.", "30000", "")},
    {"a": ("b,a", "1000", None), "b": ("*", "30000", None)},
    {"a": ("*,b", None, None)},
    {"a": ("a", "400000", None)},
    {"a": ("a", "400000", None), "b": (None, "2000", None)},
    {"a": ("", "2000", None)},
    {"a": ("   ", "2000", None)},
    {"a": (",a,", "2000", None)},
    {"a": ("a,,b", None, None)},
    {"a": (" a b , c ,  d", "100", None)},
    {"a": ("a", None, None), "b": ("b", "100", "client_id=nobody")},
    {"a": (None, None, "client_id=tests")},
)
"""Metrics, interval and match of subscriptions."""


def _subscribed(side: Side) -> list[Any]:
    """Return whether each set of subscriptions is accepted, and the resulting subscription of a
    client.
    """
    responses: list[Any] = []
    for subscriptions in SUBSCRIPTIONS:
        done = [side.subscribe(name, *values) for name, values in subscriptions.items()]
        side.wait_for_metadata()
        with TelemetryClient(side.address) as client:
            responses.append((done, _shown(client.get())))
        for name in subscriptions:
            side.subscribe(name)
    return responses


async def test_several_subscriptions_are_combined_as_in_kafka(sides: Sides) -> None:
    expected, found = await sides.run(_subscribed)
    for subscriptions, kafkas_response, response in zip(
        SUBSCRIPTIONS, expected, found, strict=True
    ):
        assert response == kafkas_response, subscriptions


INSTANCE = UUID("6bd8f6a0-3a24-4b4a-9c5b-6c5f5f0d8e11")
MATCHES: tuple[str, ...] = (
    "client_id=tests",
    "client_id=test",
    "client_id=ests",
    "client_id=.*est.*",
    "client_id=^tests$",
    "client_id=TESTS",
    "client_id=(?i)TESTS",
    "client_id=tes|tests",
    "client_id=.*",
    "client_id=.+",
    "client_id=unknown",
    " client_id = tests ",
    "client_id=other,client_id=tests",
    "client_id=tests,client_id=other",
    "client_id=tests,client_software_name=other",
    "client_id=tests,client_software_name=penstock-.*",
    "client_software_name=penstock",
    "client_software_name=unknown",
    "client_software_name=.*",
    "client_software_version=1.2.3",
    "client_software_version=1.2",
    "client_software_version=1\\.2.*",
    "client_software_version=unknown",
    "client_source_address=127.0.0.1",
    "client_source_address=127.*",
    "client_source_address=localhost",
    "client_source_port=[0-9]+",
    "client_source_port=1",
    "client_instance_id=.{22}",
    f"client_instance_id={INSTANCE}",
    f"client_instance_id={kafkas(INSTANCE)}",
    "",
)
CLIENTS: tuple[tuple[str | None, tuple[str, str] | None, UUID], ...] = (
    ("tests", ("penstock-tests", "1.2.3"), ZERO),
    ("tests", ("penstock-tests", "1.2.3"), INSTANCE),
    ("other", ("penstock", "1.2"), ZERO),
    ("tests", None, ZERO),
    ("", None, ZERO),
    (None, None, ZERO),
)
"""Client id, software name and version, and instance id of clients."""


def _matching(side: Side) -> list[list[str]]:
    """Return the subscriptions that match each client."""
    for number, match in enumerate(MATCHES):
        assert side.subscribe(f"s{number}", str(number), match=match) == (0, None)
    side.wait_for_metadata()
    found: list[list[str]] = []
    for client_id, software, instance in CLIENTS:
        with TelemetryClient(side.address, client_id, software) as client:
            metrics = client.get(instance).requested_metrics
        found.append([MATCHES[number] for number in sorted(map(int, metrics))])
    return found


async def test_subscriptions_match_the_same_clients_as_in_kafka(sides: Sides) -> None:
    found = await sides.compare(_matching)
    assert f"client_instance_id={kafkas(INSTANCE)}" in found[1]


def _ids(side: Side) -> list[tuple[Any, bool]]:
    """Return the responses to a client while its subscription changes, and whether each has the
    initial subscription id.
    """
    side.subscribe("all", "a,b", "1000")
    side.subscribe("first", "hit", match="client_id=first")
    side.wait_for_metadata()
    with (
        TelemetryClient(side.address, "first") as first,
        TelemetryClient(side.address, "second") as second,
    ):
        began = first.get()
        other = second.get()
        found: list[tuple[Any, bool]] = [
            (_shown(other), other.subscription_id == began.subscription_id)
        ]
        for metrics, interval_ms in (("b,a", "1000"), ("b,a", "999"), ("c", "1000"), ("a,b", None)):
            side.subscribe("all", metrics, interval_ms)
            side.wait_for_metadata()
            response = second.get(began.client_instance_id)
            found.append((_shown(response), response.subscription_id == began.subscription_id))
        side.subscribe("all", "a,b", "1000")
        side.wait_for_metadata()
        response = second.get(began.client_instance_id)
        found.append((_shown(response), response.subscription_id == began.subscription_id))
    return found


async def test_subscription_ids_stay_or_change_as_in_kafka(sides: Sides) -> None:
    """On each connection, a client keeps the identity of its first request."""
    found = await sides.compare(_ids)
    assert [is_same for _, is_same in found] == [False, True, False, False, False, True]


def _on_two_connections(side: Side) -> list[int]:
    side.subscribe("all", "one", str(LONG_MS))
    side.wait_for_metadata()
    with closing(TelemetryClient(side.address)) as first, TelemetryClient(side.address) as second:
        got = first.get()
        known = (got.client_instance_id, got.subscription_id)
        codes = [second.push(*known, ONE), first.push(*known, ONE), second.get(known[0]).error_code]
        codes.append(first.push(*known, ONE, terminating=True))
        first.close()
        wait_until(lambda: second.get(known[0]).error_code == 0)
        codes.append(second.push(*known, ONE))
    return codes


async def test_telemetry_state_is_reset_when_the_first_connection_closes_as_in_kafka(
    sides: Sides,
) -> None:
    assert await sides.compare(_on_two_connections) == [0, 89, 89, 0, 0]


# Payloads


def _kinds_of_data() -> Iterator[tuple[int, bytes]]:
    """Yield pairs of compression type and payload."""
    for compression in Compression:
        yield compression, compress(compression, _metrics(compression.name))
        yield compression, b""
        if compression:
            yield compression, b"broken"
            yield compression, compress(compression, _metrics("x" * 1_000))[:-20]
            yield compression, compress(compression, b"")
    yield Compression.NONE, bytes(MAX_BYTES + 1)
    for unknown in (-128, -1, 5, 127):
        yield unknown, ONE


def _has_ended(side: Side, instance: UUID) -> bool:
    return "last" in side.received_names(instance)


def _delivered(side: Side) -> list[Any]:
    """Return the responses to pushes, each by another client, and the received metrics."""
    side.subscribe("all", "*", str(LONG_MS))
    side.wait_for_metadata()
    found: list[Any] = []
    with TelemetryClient(side.address) as client:
        for compression, data in _kinds_of_data():
            got = client.get()
            known = (got.client_instance_id, got.subscription_id)
            code = client.push(*known, data, compression_type=compression)
            last = client.push(*known, _metrics("last"), terminating=True)
            wait_until(partial(_has_ended, side, known[0]))
            found.append((compression, code, last, side.received_names(known[0])))
    return found


async def test_receiver_gets_the_same_metrics_as_a_kafka_plugin(sides: Sides) -> None:
    found = await sides.compare(_delivered)
    for compression in Compression:
        assert (compression, 0, 0, [compression.name, "last"]) in found


def _announced(address: str) -> list[Any]:
    with TelemetryClient(address, software=None) as client:
        announced = client.announced("tests", "1")
    return [announced.get(key) for key in (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)]


async def test_brokers_advertise_the_telemetry_apis_as_kafka_with_a_plugin(sides: Sides) -> None:
    assert await sides.compare(lambda side: _announced(side.address)) == [(0, 0), (0, 0)]


async def test_brokers_without_a_receiver_advertise_the_same_apis_as_kafka(
    peer: str, tmp_path: Path
) -> None:
    async with Cluster(tmp_path) as cluster:
        for address in (peer, cluster.bootstrap):
            assert await asyncio.to_thread(_announced, address) == [None, None]


# Real clients


JAVA, LIBRDKAFKA = "by-java", "by-librdkafka"
"""Topics."""


def _produced(side: Side, produce: Callable[[], bool]) -> list[Metric]:
    """Let a client produce until it has pushed twice. Return the pushed metrics."""
    name = "org.apache.kafka.producer.connection.creation.total"

    def has_pushed() -> bool:
        assert produce()
        found = [metric.name for metric in side.received("client_id", "producer")]
        return found.count(name) > 1

    wait_until(has_pushed)
    return side.received("client_id", "producer")


def _by_java(sides: Sides, side: Side) -> list[Metric]:
    arguments = (
        *("--bootstrap-server", side.address, "--topic", JAVA, "--num-records", "300"),
        *("--record-size", "100", "--throughput", "100"),
        *("--command-property", "client.id=producer"),
    )
    return _produced(side, lambda: sides.java.tool(PERFORMANCE, *arguments).returncode == 0)


def _by_librdkafka(sides: Sides, side: Side) -> list[Metric]:
    del sides
    producer = Producer(
        {"bootstrap.servers": side.address, "client.id": "producer", "log_level": 0}
    )

    def produce() -> bool:
        producer.produce(LIBRDKAFKA, b"value")
        return producer.flush(PATIENCE_S) == 0

    return _produced(side, produce)


@pytest.mark.long
@pytest.mark.parametrize(("topic", "produced"), [(JAVA, _by_java), (LIBRDKAFKA, _by_librdkafka)])
async def test_clients_push_the_same_metrics_as_to_kafka(
    sides: Sides, pushes: Path, topic: str, produced: Callable[[Sides, Side], list[Metric]]
) -> None:
    """Sums are cumulative, whereas Kafka requests deltas."""
    await asyncio.to_thread(pushes.unlink, missing_ok=True)
    found: list[list[Metric]] = []
    for side in (sides.kafka, sides.penstock):
        await asyncio.to_thread(create_topic, side.address, topic, 1)
        await asyncio.to_thread(side.subscribe, "all", "*", "200")
        await asyncio.to_thread(side.wait_for_metadata)
        found.append(await asyncio.to_thread(produced, sides, side))
    names = [{metric.name for metric in metrics} for metrics in found]
    assert names[0] == names[1]
    assert "org.apache.kafka.producer.connection.creation.total" in names[1]
    temporalities = [
        {metric.sum.aggregation_temporality for metric in metrics if metric.HasField("sum")}
        for metrics in found
    ]
    assert temporalities == [
        {AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA},
        {AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE},
    ]
