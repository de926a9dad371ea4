"""GetTelemetrySubscriptions and PushTelemetry: receive client metrics (KIP-714), add client
attributes and forward them. Only brokers with a metrics receiver support these APIs. Unlike in
Kafka, clients push cumulative values, so that a lost push does not lose counts and Prometheus
accepts the values. As in Kafka, no permissions are required.
"""

from base64 import urlsafe_b64encode
from typing import Final
from uuid import UUID, uuid4

from penstock.broker.client_metrics.collection import ClientMetrics
from penstock.broker.client_metrics.instances import ClientInstance, TelemetryRefused
from penstock.broker.client_metrics.otlp import MetricsInvalid, resource_of, with_resource
from penstock.broker.client_metrics.subscriptions import ClientIdentity
from penstock.broker.errors import ErrorCode
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.protocol.batch.compression import Compression, decompress
from penstock.protocol.batch.errors import BatchCorrupt, BatchTooLarge
from penstock.protocol.gen import get_telemetry_subscriptions, push_telemetry
from penstock.protocol.gen.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from penstock.protocol.gen.push_telemetry import PushTelemetryResponse

DECOMPRESSED_BYTES_MAX: Final = 4 << 20
SERVICE_NAME: Final = "kafka-client"
_RESERVED: Final = UUID(int=1)
_IDENTITY_CHARS_MAX: Final = 256
"""Longer client names are truncated before they are matched with patterns or used as attributes."""
_ACCEPTED: Final = [Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY]
"""Accepted compression types, in order of preference."""


def handle_get_telemetry_subscriptions(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, get_telemetry_subscriptions.decode_request)
    instance = request.client_instance_id or uuid4()
    client = _heard(node, ctx, _identity(ctx, instance), instance)
    try:
        client.get(_now_ms(ctx))
    except TelemetryRefused as refused:
        return encode_response(ctx, GetTelemetrySubscriptionsResponse(error_code=refused.code))
    return encode_response(
        ctx,
        GetTelemetrySubscriptionsResponse(
            client_instance_id=instance,
            subscription_id=client.wanted.subscription_id,
            accepted_compression_types=list(_ACCEPTED),
            push_interval_ms=client.wanted.interval_ms,
            telemetry_max_bytes=node.config.telemetry_max_bytes,
            delta_temporality=False,
            requested_metrics=list(client.wanted.metrics),
        ),
    )


def handle_push_telemetry(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, push_telemetry.decode_request)
    instance = request.client_instance_id
    if instance is None or instance == _RESERVED:
        return encode_response(ctx, PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST))
    identity = _identity(ctx, instance)
    try:
        _heard(node, ctx, identity, instance).push(
            _now_ms(ctx),
            subscription_id=request.subscription_id,
            compression=request.compression_type,
            size_bytes=len(request.metrics),
            size_bytes_max=node.config.telemetry_max_bytes,
            is_last=request.terminating,
        )
    except TelemetryRefused as refused:
        return encode_response(ctx, PushTelemetryResponse(error_code=refused.code))
    if request.metrics:
        try:
            plain = decompress(request.compression_type, request.metrics, DECOMPRESSED_BYTES_MAX)
            metrics = with_resource(plain, _resource(node, ctx, identity))
        except (BatchCorrupt, BatchTooLarge, MetricsInvalid):
            return encode_response(ctx, PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD))
        _collection(node).sender.offer(metrics)
    return encode_response(ctx, PushTelemetryResponse())


def _heard(
    node: Node, ctx: RequestContext, identity: ClientIdentity, instance: UUID
) -> ClientInstance:
    return _collection(node).instances.heard(instance, identity, ctx.connection.id, _now_ms(ctx))


def _collection(node: Node) -> ClientMetrics:
    assert node.client_metrics is not None, "the APIs are announced only with a receiver"
    return node.client_metrics


def _now_ms(ctx: RequestContext) -> float:
    return ctx.received_at * 1_000


def _identity(ctx: RequestContext, instance: UUID) -> ClientIdentity:
    connection = ctx.connection
    software = connection.client_software
    return ClientIdentity(
        client_id=(ctx.client_id or "")[:_IDENTITY_CHARS_MAX],
        client_instance_id=_text_of(instance),
        client_software_name=software.name,
        client_software_version=software.version,
        client_source_address=connection.peer_host,
        client_source_port=connection.peer.rpartition(":")[2],
    )


def _text_of(instance: UUID) -> str:
    """Return the id in the format that Kafka clients log."""
    return urlsafe_b64encode(instance.bytes).decode().rstrip("=")


def _resource(node: Node, ctx: RequestContext, identity: ClientIdentity) -> bytes:
    """Return the attributes of the client: the KIP-714 attributes, plus `job` and `instance`, which
    distinguish time series in Prometheus.
    """
    return resource_of(
        [
            *identity._asdict().items(),
            ("principal", str(ctx.connection.principal)),
            ("broker_id", str(node.node_id)),
            ("service.name", SERVICE_NAME),
            ("service.instance.id", identity.client_instance_id),
        ]
    )
