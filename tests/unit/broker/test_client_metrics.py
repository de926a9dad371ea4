"""Client metrics (KIP-714): subscriptions, request limits, resource attributes."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from penstock.broker.client_metrics.instances import ClientInstances, TelemetryRefused
from penstock.broker.client_metrics.otlp import (
    FIELDS_MAX,
    MESSAGE_BYTES_MAX,
    RESPONSE_FIELDS_MAX,
    MetricsInvalid,
    read_response,
    resource_of,
    with_resource,
)
from penstock.broker.client_metrics.subscriptions import (
    ClientIdentity,
    ClientSubscription,
    wanted_of,
)
from penstock.broker.errors import ErrorCode

ONE, TWO = UUID(int=1), UUID(int=2)
IDENTITY = ClientIdentity("orders-1", str(ONE), "apache-kafka-java", "4.2.0", "10.0.0.7", "45678")
INTERVAL_MS = 60_000


# --- subscriptions --------------------------------------------------------------------------------


def wanted(*subscriptions: Mapping[str, str]) -> ClientSubscription:
    return wanted_of(subscriptions, IDENTITY, ONE)


def test_clients_without_a_subscription_get_no_metrics_and_the_default_interval() -> None:
    assert wanted()[1:] == ((), 300_000)


def test_matching_subscriptions_are_merged_with_the_shortest_interval() -> None:
    assert wanted(
        {"metrics": "b,a", "interval.ms": "90000"},
        {"metrics": "c,a", "interval.ms": "60000", "match": "client_id=orders-.*"},
        {"metrics": "d", "interval.ms": "100", "match": "client_id=payments-.*"},
    )[1:] == (("a", "b", "c"), 60_000)


def test_a_star_subscribes_to_all_metrics() -> None:
    assert wanted({"metrics": "a"}, {"metrics": "*"}).metrics == ("*",)


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("client_id=orders-1", True),
        ("client_id=orders", False),
        ("client_id=order.*,client_software_name=apache-kafka-java", True),
        ("client_id=order.*,client_software_version=3.*", False),
        ("client_source_address=10\\.0\\.0\\..*,client_source_port=4.*", True),
        (f"client_instance_id={ONE}", True),
        ("", True),
    ],
)
def test_all_patterns_must_match_the_whole_value(match: str, matches: bool) -> None:
    assert bool(wanted({"metrics": "a", "match": match}).metrics) == matches


def test_the_subscription_id_depends_on_the_metrics_and_the_client() -> None:
    first = wanted({"metrics": "a,b"})
    assert first == wanted({"metrics": "b,a"}), "brokers agree, whatever the order"
    others = [
        wanted({"metrics": "a"}),
        wanted({"metrics": "a,b", "interval.ms": "100"}),
        wanted_of([{"metrics": "a,b"}], IDENTITY, TWO),
    ]
    assert first.subscription_id not in {other.subscription_id for other in others}
    assert all(-(2**31) <= each.subscription_id < 2**31 for each in (first, *others))


# --- attributes -----------------------------------------------------------------------------------


def data_of(*resources: tuple[dict[str, str], list[str]]) -> bytes:
    data = MetricsData()
    for attributes, metrics in resources:
        resource = data.resource_metrics.add()
        for name, value in attributes.items():
            resource.resource.attributes.add(key=name).value.string_value = value
        scope = resource.scope_metrics.add()
        for metric in metrics:
            scope.metrics.add(name=metric).gauge.data_points.add(as_double=1.5)
    return data.SerializeToString()


def parsed(data: bytes) -> list[tuple[list[tuple[str, str]], list[str]]]:
    return [
        (
            [(item.key, item.value.string_value) for item in resource.resource.attributes],
            [metric.name for scope in resource.scope_metrics for metric in scope.metrics],
        )
        for resource in MetricsData.FromString(data).resource_metrics
    ]


def test_attributes_are_appended_to_those_of_each_resource() -> None:
    data = data_of(({"group_id": "g"}, ["x", "y"]), ({}, ["z"]))
    added = [("client_id", "c" * 200), ("principal", "User:Grüß")]
    assert parsed(with_resource(data, resource_of(added))) == [
        ([("group_id", "g"), *added], ["x", "y"]),
        (added, ["z"]),
    ]
    assert with_resource(b"", resource_of(added)) == b""


def test_metrics_of_the_same_resource_are_merged() -> None:
    """The Java client sends one ResourceMetrics for each metric."""
    data = data_of(({"group_id": "g"}, ["x"]), ({}, ["y"]), ({"group_id": "g"}, ["z"]))
    added = [("client_id", "c")]
    assert parsed(with_resource(data, resource_of(added))) == [
        ([("group_id", "g"), *added], ["x", "z"]),
        (added, ["y"]),
    ]


@pytest.mark.parametrize("each", [b"\x0a\x00", b"\x0a\x02\x12\x00", b"\x0a\x02\x0a\x00"])
def test_the_number_of_fields_has_a_limit(each: bytes) -> None:
    """Each field takes time to parse, and 4 MiB could contain two million."""
    resource = resource_of([("a", "b")])
    with_resource(each * (FIELDS_MAX // 2 - 1), resource)
    with pytest.raises(MetricsInvalid, match="more than"):
        with_resource(each * (FIELDS_MAX + 1), resource)
    with pytest.raises(MetricsInvalid, match="more than"):
        with_resource(b"\x0a\xff\xff\x07" + b"\x12\x00" * (0x1FFFF // 2) + b"\x08", resource)


def test_two_concatenated_pushes_are_one_request() -> None:
    resource = resource_of([("a", "b")])
    one, two = (with_resource(data_of(({}, [name])), resource) for name in "xy")
    assert [metrics for _, metrics in parsed(one + two)] == [["x"], ["y"]]


@given(st.binary(max_size=200))
def test_malformed_resource_lists_are_rejected_without_affecting_the_rest(data: bytes) -> None:
    """A client must not invalidate the pushes of others in the same request."""
    resource = resource_of([("a", "b")])
    try:
        marked = with_resource(data, resource)
    except MetricsInvalid:
        return
    other = with_resource(data_of(({}, ["x"])), resource)
    assert _top_level(marked + other)[-1] == _top_level(other)[0]


@given(st.binary(max_size=60), st.integers(0, 400))
def test_damaged_metrics_are_rejected_or_kept_separate(junk: bytes, at: int) -> None:
    data = data_of(({"group_id": "g"}, ["x", "y"]), ({}, ["z"]))
    damaged = data[: at % len(data)] + junk
    try:
        marked = with_resource(damaged, resource_of([("a", "b")]))
    except MetricsInvalid:
        return
    assert len(_top_level(marked)) <= len(_top_level(damaged))


def _top_level(data: bytes) -> list[bytes]:
    """Return the top-level messages of a repeated field."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        assert data[at] == 0x0A
        at += 1
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert at + size <= len(data)
        found.append(data[at : at + size])
        at += size
    return found


# --- receiver responses ---------------------------------------------------------------------------


def response_of(rejected_count: int, message: str) -> bytes:
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = rejected_count
    response.partial_success.error_message = message
    return response.SerializeToString()


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=100))
def test_a_partial_success_is_decoded_according_to_its_schema(
    rejected_count: int, message: str
) -> None:
    found = read_response(response_of(rejected_count, message))
    assert found == (max(rejected_count, 0), message)


def test_a_response_without_a_partial_success_rejects_nothing() -> None:
    assert read_response(b"") == (0, "")
    assert read_response(b"\x0a\x00") == (0, "")
    later = b"\x10\x05" + b"\x1a\x02\x08\x07" + response_of(3, "why") + b"\x25abcd"
    assert read_response(later) == (3, "why"), "fields of later versions"


def test_the_two_parts_of_a_partial_success_are_merged() -> None:
    assert read_response(response_of(3, "") + response_of(0, "why")) == (3, "why")


def test_a_long_message_is_truncated() -> None:
    assert read_response(response_of(3, "é" * 10_000)) == (3, "é" * (MESSAGE_BYTES_MAX // 2))


@pytest.mark.parametrize(
    "field", [b"\x10\x05", b"\x0a\x00", b"\x0a\x02\x10\x05"], ids=["other", "empty", "nested"]
)
def test_the_number_of_fields_of_a_response_has_a_limit(field: bytes) -> None:
    assert read_response(field * RESPONSE_FIELDS_MAX) == (0, "")
    with pytest.raises(MetricsInvalid, match=f"more than {RESPONSE_FIELDS_MAX}"):
        read_response(field * (RESPONSE_FIELDS_MAX + 1))


@given(st.binary(max_size=200))
def test_damaged_responses_are_rejected_or_decoded(junk: bytes) -> None:
    for data in (junk, response_of(3, "why")[:-1] + junk):
        try:
            rejected_count, message = read_response(data)
        except MetricsInvalid:
            continue
        assert rejected_count >= 0
        assert len(message) <= MESSAGE_BYTES_MAX


# --- intervals of requests and pushes -------------------------------------------------------------


class Clients:
    """The clients of one broker, with a clock."""

    def __init__(self, clients_max: int = 16) -> None:
        self.wanted = ClientSubscription(7, ("a",), INTERVAL_MS)
        self.requested: list[ClientIdentity] = []
        self.instances = ClientInstances(self._find, clients_max)
        self.now_ms = 1_000_000.0

    def _find(self, identity: ClientIdentity, instance: UUID) -> ClientSubscription:
        del instance
        self.requested.append(identity)
        return self.wanted

    def get(self, instance: UUID = ONE, connection: int = 1) -> ErrorCode:
        client = self.instances.heard(instance, IDENTITY, connection, self.now_ms)
        try:
            client.get(self.now_ms)
        except TelemetryRefused as refused:
            return refused.code
        return ErrorCode.NONE

    def push(
        self,
        instance: UUID = ONE,
        *,
        subscription_id: int = 7,
        compression: int = 4,
        size: int = 10,
        last: bool = False,
        connection: int = 1,
    ) -> ErrorCode:
        client = self.instances.heard(instance, IDENTITY, connection, self.now_ms)
        try:
            client.push(
                self.now_ms,
                subscription_id=subscription_id,
                compression=compression,
                size_bytes=size,
                size_bytes_max=10,
                is_last=last,
            )
        except TelemetryRefused as refused:
            return refused.code
        return ErrorCode.NONE


OK, EARLY = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_client_may_push_once_per_interval_after_its_subscription_request() -> None:
    clients = Clients()
    assert [clients.get(), clients.push(), clients.push(), clients.get()] == [OK, OK, EARLY, EARLY]
    clients.now_ms += INTERVAL_MS - 1
    assert [clients.push(), clients.get()] == [EARLY, EARLY]
    clients.now_ms += 1
    assert [clients.get(), clients.push(), clients.push()] == [OK, OK, EARLY]


@pytest.mark.parametrize(
    ("pushed", "code"),
    [
        ({"subscription_id": 8, "compression": 9, "size": 11}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression": 9, "size": 11}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_a_client_with_an_unknown_subscription_may_request_once_at_once(
    pushed: dict[str, int], code: ErrorCode
) -> None:
    clients = Clients()
    assert clients.get() is OK
    assert clients.push(**pushed) is code
    assert [clients.get(), clients.get()] == [OK, EARLY]
    assert clients.push() is EARLY, "the refused push counts"


def test_a_push_that_is_too_large_is_rejected_and_counted() -> None:
    clients = Clients()
    clients.get()
    assert [clients.push(size=11), clients.push(size=10)] == [
        ErrorCode.TELEMETRY_TOO_LARGE,
        EARLY,
    ]


def test_the_terminating_push_may_come_early_and_later_pushes_are_rejected() -> None:
    clients = Clients()
    assert [clients.get(), clients.push(), clients.push(last=True)] == [OK, OK, OK]
    assert clients.push(last=True) is ErrorCode.INVALID_REQUEST
    assert clients.push() is ErrorCode.INVALID_REQUEST
    assert clients.push() is EARLY, "as in Kafka, a push that is not the last one begins again"


def test_clients_keep_their_identity_when_subscriptions_change() -> None:
    clients = Clients()
    clients.get()
    clients.push(last=True)
    clients.wanted = ClientSubscription(8, ("b",), INTERVAL_MS)
    assert clients.push() is ErrorCode.INVALID_REQUEST, "nothing is known of it yet"
    clients.instances.subscriptions_changed()
    assert [clients.get(), clients.push(), clients.push(subscription_id=8)] == [
        OK,
        ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
        EARLY,
    ]
    assert clients.requested == [IDENTITY] * 2


def test_clients_are_removed_with_their_connection_and_after_inactivity() -> None:
    clients = Clients()
    clients.get(ONE, connection=1)
    clients.get(TWO, connection=2)
    assert clients.push(ONE, connection=2) is OK
    clients.instances.close_connection(2)
    assert [clients.get(ONE), clients.get(TWO)] == [EARLY, OK]
    clients.instances.close_connection(1)
    assert clients.get(ONE) is OK
    clients.now_ms += 3 * INTERVAL_MS
    assert clients.push(ONE, last=True) is OK
    clients.now_ms += 3 * INTERVAL_MS
    assert clients.push(ONE) is ErrorCode.INVALID_REQUEST
    clients.push(ONE, last=True)
    clients.now_ms += 3 * INTERVAL_MS + 1
    assert clients.push(ONE) is OK, "it is another one by now"


def test_the_client_inactive_for_longest_is_evicted() -> None:
    clients = Clients(clients_max=2)
    three = UUID(int=3)
    for instance in (ONE, TWO):
        assert clients.get(instance, connection=instance.int) is OK
    clients.push(ONE)
    assert clients.get(three, connection=3) is OK
    assert len(clients.instances) == 2
    assert [clients.get(ONE), clients.get(TWO)] == [EARLY, OK]
    for connection in (1, 2, 3):
        clients.instances.close_connection(connection)
    assert not len(clients.instances)
