"""An OTLP receiver for metrics over HTTP. It keeps accepted requests, and responds as the test
configures.
"""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics

from tests.support.certs import Authority


class OtlpReceiver:
    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        """Accepted requests."""
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.statuses: list[int] = []
        """Status codes of the next responses; later responses have 200."""
        self.response = ExportMetricsServiceResponse()
        """The response body for accepted requests."""
        self.port = 0

    async def take(self, request: web.Request) -> web.StreamResponse:
        decoded = ExportMetricsServiceRequest()
        decoded.ParseFromString(await request.read())
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        status = self.statuses.pop(0) if self.statuses else self.status_of(decoded)
        if status == 200:
            self.requests.append(decoded)
            return await self.taken(request)
        return web.Response(status=status, text="because")

    async def taken(self, request: web.Request) -> web.StreamResponse:
        """Respond to an accepted request."""
        del request
        body = self.response.SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    def status_of(self, request: ExportMetricsServiceRequest) -> int:
        del request
        return 200

    def resources(self) -> Iterator[tuple[dict[str, str], list[Metric]]]:
        """Yield the attributes and metrics of each accepted resource."""
        for request in self.requests:
            for resource in request.resource_metrics:
                yield attributes_of(resource), metrics_of(resource)


class Knowing(OtlpReceiver):
    """Records the certificate names of the senders."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    async def taken(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("peercert")
        self.names.append(dict(chain[0] for chain in certificate["subject"])["commonName"])
        response = await super().taken(request)
        response.force_close()
        return response


def demanding(authority: Authority) -> ssl.SSLContext:
    """Return the context of a receiver that requires a client certificate of this CA."""
    server = authority.make("receiver")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server.certificate, server.key)
    tls.load_verify_locations(authority.file)
    tls.verify_mode = ssl.CERT_REQUIRED
    return tls


def attributes_of(resource: ResourceMetrics) -> dict[str, str]:
    return {item.key: item.value.string_value for item in resource.resource.attributes}


def metrics_of(resource: ResourceMetrics) -> list[Metric]:
    return [metric for scope in resource.scope_metrics for metric in scope.metrics]


@asynccontextmanager
async def serving(
    receiver: OtlpReceiver, *, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[OtlpReceiver]:
    """Serve on 127.0.0.1. port: 0 for a free port."""
    application = web.Application(client_max_size=64 << 20)
    application.router.add_post("/{path:.*}", receiver.take)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        receiver.port = int(runner.addresses[0][1])
        yield receiver
    finally:
        await runner.cleanup()
