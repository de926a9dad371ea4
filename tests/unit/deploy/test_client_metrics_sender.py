"""Client metrics are sent to an OTLP receiver over HTTP: batched, retried, or dropped."""

import asyncio
import gzip
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from structlog.testing import capture_logs

from penstock.broker.client_metrics.sender import SentCounts
from penstock.broker.config import BrokerConfig
from penstock.deploy.errors import UsageError
from penstock.deploy.node import client_metrics
from penstock.deploy.node.client_metrics import OtlpMetrics, sender_of
from tests.support.certs import Authority, replace
from tests.support.otlp_receiver import Knowing, OtlpReceiver, demanding, metrics_of, serving
from tests.support.ports import free_port
from tests.support.waiting import until


def push(name: str, padding: int = 0) -> bytes:
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name=name, description="x" * padding).gauge.data_points.add(as_int=1)
    return data.SerializeToString()


def names(request: ExportMetricsServiceRequest) -> list[str]:
    return [metric.name for resource in request.resource_metrics for metric in metrics_of(resource)]


@asynccontextmanager
async def sending(metrics: OtlpMetrics) -> AsyncIterator[OtlpMetrics]:
    task = asyncio.create_task(metrics.run())
    try:
        yield metrics
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def to(port: int, environment: dict[str, str] | None = None, scheme: str = "http") -> OtlpMetrics:
    return OtlpMetrics(f"{scheme}://127.0.0.1:{port}", environment or {}, pause_s_min=0.01)


async def test_pushes_during_a_request_share_the_next_one() -> None:
    receiver = OtlpReceiver()
    async with serving(receiver), sending(to(receiver.port)) as metrics:
        for name in "abc":
            metrics.offer(push(name))
        await until(lambda: metrics.counts.sent == 3)
        assert [names(request) for request in receiver.requests] == [["a", "b", "c"]]
        assert receiver.paths == ["/v1/metrics"]
        assert receiver.headers[0]["Content-Type"] == "application/x-protobuf"
        assert metrics.counts.sent_bytes == 3 * len(push("a"))
        metrics.offer(push("d"))
        await until(lambda: metrics.counts.sent == 4)


async def test_the_size_of_requests_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "REQUEST_BYTES_MAX", 2 * len(push("a")))
    receiver = OtlpReceiver()
    async with serving(receiver), sending(to(receiver.port)) as metrics:
        for name in "abc":
            metrics.offer(push(name))
        metrics.offer(push("large", padding=500))
        await until(lambda: metrics.counts.sent == 4)
        assert [names(each) for each in receiver.requests] == [["a", "b"], ["c"], ["large"]]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_request_is_retried_after_a_temporary_error(status: int) -> None:
    receiver = OtlpReceiver()
    receiver.statuses = [status, status]
    async with serving(receiver), sending(to(receiver.port)) as metrics:
        metrics.offer(push("a"))
        await until(lambda: metrics.counts.sent == 1)
        assert (len(receiver.paths), metrics.counts.dropped) == (3, 0)


async def test_a_receiver_that_starts_late_gets_queued_metrics() -> None:
    receiver, port = OtlpReceiver(), free_port()
    async with sending(to(port)) as metrics:
        with capture_logs() as logged:
            metrics.offer(push("a"))
            await until(lambda: metrics._is_failing)
        (line,) = logged
        assert (line["event"], line["endpoint"]) == ("client_metrics_delayed", metrics._url)
        assert re.fullmatch(r".*Connect.* failed.*|.*[Rr]efused.*", line["reason"])
        assert "SSLContext" not in line["reason"]
        metrics.offer(push("b"))
        async with serving(receiver, port=port):
            await until(lambda: metrics.counts.sent == 2)
    assert [names(each) for each in receiver.requests] == [["a"], ["b"]]


async def test_rejected_metrics_do_not_affect_others() -> None:
    class Picky(OtlpReceiver):
        def status_of(self, request: ExportMetricsServiceRequest) -> int:
            return 400 if "bad" in names(request) else 200

    receiver = Picky()
    async with serving(receiver), sending(to(receiver.port)) as metrics:
        for name in ("a", "bad", "c"):
            metrics.offer(push(name))
        await until(lambda: metrics.counts.sent + metrics.counts.dropped == 3)
        assert (metrics.counts.sent, metrics.counts.dropped) == (2, 1)
        assert [names(each) for each in receiver.requests] == [["a"], ["c"]]


async def test_the_oldest_metrics_are_dropped_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "WAITING_BYTES_MAX", 2 * len(push("a")))
    metrics = to(1)
    for name in "abc":
        metrics.offer(push(name))
    counts = metrics.counts
    assert (counts.dropped, counts.waiting_bytes) == (1, 2 * len(push("a")))
    receiver = OtlpReceiver()
    async with serving(receiver):
        metrics._url = f"http://127.0.0.1:{receiver.port}/"
        async with sending(metrics):
            await until(lambda: counts.sent == 2)
    assert names(receiver.requests[0]) == ["b", "c"]
    assert not counts.waiting_bytes


# --- partial success ------------------------------------------------------------------------------


def partial_lines(logged: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    assert {line["event"] for line in logged} <= {"client_metrics_partial_success"}
    return [(line["rejected_data_points"], line["reason"]) for line in logged]


async def deliver(receiver: OtlpReceiver, pushes: Sequence[bytes]) -> tuple[SentCounts, list[Any]]:
    """Send each push separately; return the counts and the log lines."""
    async with serving(receiver), sending(to(receiver.port)) as metrics:
        with capture_logs() as logged:
            for count, each in enumerate(pushes, 1):
                metrics.offer(each)
                await until(lambda sent=count: metrics.counts.sent == sent)
    assert len(receiver.paths) == len(pushes), "nothing is sent again"
    return metrics.counts, logged


async def test_rejected_data_points_are_counted_and_logged_once_a_minute() -> None:
    receiver = OtlpReceiver()
    receiver.response.partial_success.rejected_data_points = 3
    receiver.response.partial_success.error_message = "out of order sample"
    counts, logged = await deliver(receiver, [push("a"), push("b")])
    assert (counts.rejected_data_points, counts.dropped) == (6, 0)
    assert partial_lines(logged) == [(3, "out of order sample")]


async def test_the_next_line_is_logged_a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "PARTIAL_SUCCESS_LOG_S", 1e-9)
    receiver = OtlpReceiver()
    receiver.response.partial_success.rejected_data_points = 1
    _, logged = await deliver(receiver, [push("a"), push("b")])
    assert partial_lines(logged) == [(1, ""), (1, "")]


async def test_a_hint_without_rejected_data_points_is_logged() -> None:
    receiver = OtlpReceiver()
    receiver.response.partial_success.error_message = "use delta"
    counts, logged = await deliver(receiver, [push("a")])
    assert (counts.rejected_data_points, partial_lines(logged)) == (0, [(0, "use delta")])


async def test_a_full_success_is_not_logged() -> None:
    receiver = OtlpReceiver()
    receiver.response.partial_success.SetInParent()
    counts, logged = await deliver(receiver, [push("a")])
    assert (counts.rejected_data_points, logged) == (0, [])


@pytest.mark.parametrize("claimed", [-1, (1 << 63) - 1], ids=["negative", "more than it got"])
async def test_invalid_counts_of_a_receiver_are_ignored(claimed: int) -> None:
    receiver = OtlpReceiver()
    receiver.response.partial_success.rejected_data_points = claimed
    counts, _ = await deliver(receiver, [push("a")])
    assert 0 <= counts.rejected_data_points <= len(push("a"))


_REJECTED = ExportMetricsServiceResponse()
_REJECTED.partial_success.rejected_data_points = 3
_REJECTED.partial_success.error_message = "x" * client_metrics.RESPONSE_BYTES_MAX
_LONG = _REJECTED.SerializeToString()
_PROTOBUF = "application/x-protobuf"


@pytest.mark.parametrize(
    ("body", "content_type", "encoding"),
    [
        (b"OK", "text/plain", ""),
        (b'{"partialSuccess":{"rejectedDataPoints":"3"}}', "application/json", ""),
        (b"<html>not protobuf</html>", _PROTOBUF, ""),
        (_LONG[:30], _PROTOBUF, ""),
        (_LONG, _PROTOBUF, ""),
        (gzip.compress(bytes(64 << 20)), _PROTOBUF, "gzip"),
    ],
    ids=["text", "json", "html", "cut off", "too long", "bomb"],
)
async def test_unknown_responses_change_nothing(
    body: bytes, content_type: str, encoding: str
) -> None:
    class Foreign(OtlpReceiver):
        async def taken(self, request: web.Request) -> web.StreamResponse:
            del request
            headers = {"Content-Encoding": encoding} if encoding else None
            return web.Response(body=body, content_type=content_type, headers=headers)

    counts, logged = await deliver(Foreign(), [push("a"), push("b")])
    assert (counts.sent, counts.rejected_data_points, logged) == (2, 0, [])


async def test_a_truncated_response_causes_no_retry() -> None:
    class Broken(OtlpReceiver):
        async def taken(self, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": _PROTOBUF})
            response.content_length = 100
            await response.prepare(request)
            await response.write(b"\x0a")
            assert request.transport is not None
            request.transport.abort()
            return response

    counts, logged = await deliver(Broken(), [push("a")])
    assert (counts.sent, logged) == (1, [])


async def test_waiting_for_a_silent_receiver_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_metrics, "TIMEOUT_S", 3.0)
    ended = asyncio.Event()

    class Silent(OtlpReceiver):
        async def taken(self, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": _PROTOBUF})
            await response.prepare(request)
            await ended.wait()
            return response

    receiver = Silent()
    async with serving(receiver), sending(to(receiver.port)) as metrics:
        metrics.offer(push("a"))
        await until(lambda: metrics.counts.sent == 1)
        ended.set()
    assert len(receiver.paths) == 1


# --- OpenTelemetry environment variables ----------------------------------------------------------


async def test_headers_and_certificates_come_from_opentelemetry_variables(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    server = authority.make("receiver")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server.certificate, server.key)
    environment = {
        "OTEL_EXPORTER_OTLP_HEADERS": "x-all=no",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "Authorization=Bearer%20abc, x-tenant=1",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.file),
    }
    receiver = OtlpReceiver()
    async with (
        serving(receiver, tls=tls),
        sending(to(receiver.port, environment, "https")) as metrics,
    ):
        metrics.offer(push("a"))
        await until(lambda: metrics.counts.sent == 1)
    (headers,) = receiver.headers
    assert (headers["Authorization"], headers["x-tenant"]) == ("Bearer abc", "1")
    assert "x-all" not in headers


@pytest.mark.parametrize("prefix", ["OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_METRICS_"])
@pytest.mark.parametrize("is_one_file", [False, True], ids=["two files", "one file"])
async def test_a_client_certificate_is_sent_if_the_receiver_requires_one(
    tmp_path: Path, prefix: str, *, is_one_file: bool
) -> None:
    authority = Authority(tmp_path)
    client = authority.make("broker")
    environment = {
        f"{prefix}CERTIFICATE": str(authority.file),
        f"{prefix}CLIENT_CERTIFICATE": str(client.certificate),
    }
    if is_one_file:
        whole = client.key.read_bytes() + client.certificate.read_bytes()
        client.certificate.write_bytes(whole)
    else:
        environment[f"{prefix}CLIENT_KEY"] = str(client.key)
    receiver = Knowing()
    async with (
        serving(receiver, tls=demanding(authority)),
        sending(to(receiver.port, environment, "https")) as metrics,
    ):
        metrics.offer(push("a"))
        await until(lambda: metrics.counts.sent == 1)
    assert receiver.names == ["broker"]


async def test_metrics_are_queued_while_the_client_certificate_is_missing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    receiver = Knowing()
    environment = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.file)}
    async with (
        serving(receiver, tls=demanding(authority)),
        sending(to(receiver.port, environment, "https")) as metrics,
    ):
        with capture_logs() as logged:
            metrics.offer(push("a"))
            await until(lambda: metrics._is_failing)
    (line,) = logged
    assert line["event"] == "client_metrics_delayed"
    assert (receiver.names, metrics.counts.sent, metrics.counts.dropped) == ([], 0, 0)


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.make("old", file="broker")
    environment = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.file),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(client.certificate),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(client.key),
    }
    receiver = Knowing()
    async with (
        serving(receiver, tls=demanding(authority)),
        sending(to(receiver.port, environment, "https")) as metrics,
    ):
        metrics.offer(push("a"))
        await until(lambda: metrics.counts.sent == 1)
        replace(client.certificate, b"half of it")
        metrics.offer(push("b"))
        await until(lambda: metrics.counts.sent == 2)
        authority.make("new", file="broker")
        metrics.offer(push("c"))
        await until(lambda: metrics.counts.sent == 3)
    assert receiver.names == ["old", "old", "new"]


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"OTEL_EXPORTER_OTLP_HEADERS": "token"}, "OTLP_HEADERS has .*NAME=VALUE"),
        ({"OTEL_EXPORTER_OTLP_METRICS_HEADERS": "token"}, "METRICS_HEADERS has .*NAME=VALUE"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere.pem"}, "=/nowhere.pem cannot be read: No su"),
    ],
)
def test_unusable_variables_are_rejected(environment: dict[str, str], says: str) -> None:
    config = BrokerConfig(
        controllers=("c:1",), client_metrics_otlp_endpoint="http://collector:4318"
    )
    with pytest.raises(UsageError, match=says):
        sender_of(config, environment)
    assert sender_of(BrokerConfig(controllers=("c:1",)), environment) is None
