"""Client metrics (KIP-714) over real sockets: librdkafka pushes them, and an OTLP/HTTP receiver
gets them with the client's name.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData

from penstock.broker.errors import ErrorCode
from penstock.controller.metadata.configs import CLIENT_METRICS_RESOURCE
from penstock.protocol import apis
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.gen import api_versions, get_telemetry_subscriptions, push_telemetry
from tests.support.clients import confluent_consumer, create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs, send_request
from tests.support.otlp_receiver import OtlpReceiver, serving
from tests.support.waiting import PATIENCE_S, until

PREFIX = "org.apache.kafka."
ONE = UUID(int=77)


@pytest.fixture
async def receiver() -> AsyncIterator[OtlpReceiver]:
    async with serving(OtlpReceiver()) as receiver:
        yield receiver


@pytest.fixture
async def cluster(tmp_path: Path, receiver: OtlpReceiver) -> AsyncIterator[Cluster]:
    endpoint = f"http://127.0.0.1:{receiver.port}"
    async with Cluster(tmp_path, brokers=2, client_metrics_otlp_endpoint=endpoint) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t", 2)
        yield cluster


async def subscribe(cluster: Cluster, **configs: str) -> None:
    values = {name.replace("_", "."): value for name, value in configs.items()}
    subscription = (CLIENT_METRICS_RESOURCE, "s")
    assert await asyncio.to_thread(alter_configs, cluster.bootstrap, subscription, values) == (
        0,
        None,
    )
    brokers = cluster.brokers.values()
    await until(
        lambda: all(broker.image.configs.client_metrics("s") == values for broker in brokers)
    )


async def test_librdkafka_pushes_only_subscribed_metrics(
    cluster: Cluster, receiver: OtlpReceiver
) -> None:
    await subscribe(
        cluster,
        metrics=f"{PREFIX}producer.connection,{PREFIX}consumer.coordinator",
        interval_ms="200",
        match="client_id=orders-.*",
    )
    producer, other = (
        Producer({"bootstrap.servers": cluster.bootstrap, "client.id": name})
        for name in ("orders-1", "payments-1")
    )
    consumer = confluent_consumer(cluster.bootstrap, "g", **{"client.id": "orders-2"})
    consumer.subscribe(["t"])

    async def found(name: str) -> bool:
        producer.produce("t", b"x")
        other.produce("t", b"x")
        await asyncio.to_thread(lambda: (producer.poll(0), other.poll(0), consumer.poll(0.05)))
        return any(
            attributes["client_id"] == name and metrics
            for attributes, metrics in receiver.resources()
        )

    for name in ("orders-1", "orders-2"):
        await until(lambda wanted=name: found(wanted))
    await asyncio.to_thread(consumer.close)
    await asyncio.to_thread(lambda: (producer.flush(PATIENCE_S), other.flush(PATIENCE_S)))
    pushed: dict[str, set[str]] = {}
    for attributes, metrics in receiver.resources():
        pushed.setdefault(attributes["client_id"], set()).update(each.name for each in metrics)
        assert attributes["client_software_name"] == "confluent-kafka-python"
        assert attributes["client_source_address"] == "127.0.0.1"
        assert attributes["principal"] == "User:ANONYMOUS"
        assert attributes["broker_id"] in {"0", "1"}
        assert attributes["service.name"] == "kafka-client"
        assert attributes["service.instance.id"] == attributes["client_instance_id"]
    assert set(pushed) == {"orders-1", "orders-2"}, "the subscription names no other client"
    assert all(name.startswith(f"{PREFIX}producer.connection") for name in pushed["orders-1"])
    assert all(name.startswith(f"{PREFIX}consumer.coordinator") for name in pushed["orders-2"])


async def test_pushed_counters_are_cumulative(cluster: Cluster, receiver: OtlpReceiver) -> None:
    """Prometheus does not accept delta temporality."""
    await subscribe(cluster, metrics="*", interval_ms="200")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})

    def counters() -> list[Metric]:
        return [
            metric
            for _, metrics in receiver.resources()
            for metric in metrics
            if metric.name == f"{PREFIX}producer.connection.creation.total"
        ]

    async def have_come() -> bool:
        producer.produce("t", b"x")
        await asyncio.to_thread(producer.poll, 0.05)
        return len(counters()) >= 3

    await until(have_come)
    await asyncio.to_thread(producer.flush, PATIENCE_S)
    values = [metric.sum.data_points[0].as_int for metric in counters()]
    assert {metric.sum.aggregation_temporality for metric in counters()} == {2}
    assert values == sorted(values)
    assert values[0] > 0


def metrics_data() -> bytes:
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="m").gauge.data_points.add(as_int=1)
    return data.SerializeToString()


async def requested(cluster: Cluster, instance: UUID | None = ONE) -> Any:
    return await asyncio.to_thread(
        send_request,
        cluster.bootstrap,
        apis.GET_TELEMETRY_SUBSCRIPTIONS,
        get_telemetry_subscriptions.GetTelemetrySubscriptionsRequest(instance),
    )


async def push(cluster: Cluster, subscription: Any, compression: int, metrics: bytes) -> int:
    """Push metrics; return the error code."""
    request = push_telemetry.PushTelemetryRequest(
        ONE,
        subscription["subscription_id"],
        compression_type=compression,
        metrics=metrics,
    )
    response = await asyncio.to_thread(
        send_request, cluster.bootstrap, apis.PUSH_TELEMETRY, request
    )
    return int(response["error_code"])


@pytest.mark.parametrize("compression", list(Compression))
async def test_pushes_may_be_compressed(
    cluster: Cluster, receiver: OtlpReceiver, compression: Compression
) -> None:
    await subscribe(cluster, metrics="*", interval_ms="100")
    subscription = await requested(cluster)
    assert subscription["accepted_compression_types"] == [4, 3, 1, 2]
    data = compress(compression, metrics_data())
    assert await push(cluster, subscription, compression, data) == 0
    await until(lambda: bool(receiver.requests))
    ((attributes, (metric,)),) = receiver.resources()
    assert (metric.name, attributes["client_software_name"]) == ("m", "unknown")


@pytest.mark.parametrize(
    ("compression", "metrics"),
    [
        (Compression.ZSTD, b"no zstd"),
        (Compression.NONE, b"no metrics"),
        (Compression.ZSTD, compress(Compression.ZSTD, bytes(5 << 20))),
    ],
    ids=["damaged", "other bytes", "bomb"],
)
async def test_malformed_metrics_are_refused_and_not_forwarded(
    cluster: Cluster, receiver: OtlpReceiver, compression: Compression, metrics: bytes
) -> None:
    await subscribe(cluster, metrics="*", interval_ms="100")
    subscription = await requested(cluster)
    response = await push(cluster, subscription, compression, metrics)
    assert response == ErrorCode.INVALID_RECORD
    assert not receiver.paths


async def test_client_without_an_instance_id_gets_a_new_id_and_a_subscription(
    cluster: Cluster,
) -> None:
    await subscribe(cluster, metrics="a,b", interval_ms="1000")
    first, second = await requested(cluster, None), await requested(cluster, None)
    assert first["client_instance_id"] != second["client_instance_id"]
    assert first["requested_metrics"] == ["a", "b"]
    assert (first["push_interval_ms"], first["telemetry_max_bytes"]) == (1_000, 1 << 20)
    assert not first["delta_temporality"]


async def test_brokers_without_a_receiver_do_not_advertise_the_telemetry_apis(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        response = await asyncio.to_thread(
            send_request,
            cluster.bootstrap,
            apis.API_VERSIONS,
            api_versions.ApiVersionsRequest("test", "1"),
        )
        keys = {item["api_key"] for item in response["api_keys"]}
        assert apis.LIST_CONFIG_RESOURCES.key in keys
        assert not keys & {apis.GET_TELEMETRY_SUBSCRIPTIONS.key, apis.PUSH_TELEMETRY.key}
