"""Sends spans to a collector over OTLP/HTTP, from a thread of its own.

Invariants: whoever ends a span never waits: at most `SPANS_MAX` are kept, beyond that the oldest
go; a collector that does not answer costs one log line when it begins and one when it is over; the
process ends within `CLOSE_S` whatever the collector does.
Must not: decide what is traced. Source: OpenTelemetry SDK, `BatchSpanProcessor`; headers,
certificates and compression come from its `OTEL_EXPORTER_OTLP_*` variables, further attributes of
the resource from `OTEL_RESOURCE_ATTRIBUTES`.
"""

import logging
import os
import socket
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

SPANS_MAX: Final = 4_096
"""About 2 KB each."""
BATCH_SPANS_MAX: Final = 512
DELAY_MS: Final = 1_000
"""How long a span may wait for company."""
TIMEOUT_S: Final = 5.0
CLOSE_S: Final = 2.0
_PATH: Final = "/v1/traces"

_log = structlog.get_logger()


class Exporter:
    """endpoint: http://HOST:PORT of a collector; the path that OTLP says is added if there is
    none.
    """

    def __init__(self, endpoint: str, service: str) -> None:
        # What the SDK says of each failure would come once a second; we say it ourselves, once.
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        resource = Resource.create(
            {
                "service.name": service,
                "service.version": version("penstock"),
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False
        )
        sender = _Reported(OTLPSpanExporter(endpoint=url_of(endpoint), timeout=TIMEOUT_S), endpoint)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                sender,
                max_queue_size=SPANS_MAX,
                max_export_batch_size=BATCH_SPANS_MAX,
                schedule_delay_millis=DELAY_MS,
            )
        )
        self.tracer = self._provider.get_tracer("penstock")

    def close(self) -> None:
        """Send what is left, if the collector takes it quickly."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True, name="traces-close")
        closing.start()
        closing.join(CLOSE_S)


def url_of(endpoint: str) -> str:
    _, _, rest = endpoint.partition("://")
    return endpoint if "/" in rest.rstrip("/") else endpoint.rstrip("/") + _PATH


class _Reported(SpanExporter):
    """Logs when sending begins to fail, and when it works again."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing != self._is_failing:
            self._is_failing = is_failing
            if is_failing:
                _log.warning(
                    "traces_lost",
                    endpoint=self._endpoint,
                    next="spans are dropped until the collector takes them again",
                )
            else:
                _log.info("traces_sent_again", endpoint=self._endpoint)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()
