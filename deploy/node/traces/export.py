"""Send spans to a collector over OTLP/HTTP, from another thread.

Source: OpenTelemetry SDK, `BatchSpanProcessor`. Headers, certificates and compression come from its
`OTEL_EXPORTER_OTLP_*` variables, further resource attributes from `OTEL_RESOURCE_ATTRIBUTES`.
"""

import logging
import os
import socket
import threading
from collections.abc import Sequence
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from penstock.base.tls_faults import reason_of
from penstock.base.version import VERSION
from penstock.deploy.node.otlp import PREFIX, url_of

SPANS_MAX: Final = 4_096
"""Maximum number of queued spans; each has about 2 KB."""
BATCH_SPANS_MAX: Final = 512
DELAY_MS: Final = 1_000
"""Longest time that a span waits for a full batch."""
TIMEOUT_S: Final = 5.0
CLOSE_S: Final = 2.0
_PATH: Final = "/v1/traces"

_log = structlog.get_logger(__name__)


class Exporter:
    """endpoint: http://HOST:PORT of a collector; the default path of OTLP is added if there is
    none.

    Invariants: ending a span never blocks. At most `SPANS_MAX` spans are queued; beyond that, spans
    are dropped. Logs one line when sending starts to fail and one when it succeeds again. The
    process exits within `CLOSE_S`. This class does not decide which requests are traced.
    """

    def __init__(self, endpoint: str, service: str) -> None:
        # The SDK would log each failure once per second; this exporter logs it once.
        logger = logging.getLogger("opentelemetry")
        failures = _LastMessage()
        logger.addHandler(failures)
        logger.propagate = False
        resource = Resource.create(
            {
                "service.name": service,
                "service.version": VERSION,
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False
        )
        sender = _Reported(
            OTLPSpanExporter(endpoint=url_of(endpoint, _PATH), timeout=TIMEOUT_S),
            endpoint,
            failures,
        )
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
        """Send the remaining spans, for at most `CLOSE_S`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True, name="traces-close")
        closing.start()
        closing.join(CLOSE_S)


class _LastMessage(logging.Handler):
    """Stores the last log message of the SDK, because the SDK's results do not contain the reason
    for a failure.
    """

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class _Reported(SpanExporter):
    """Logs when sending starts to fail, and when it succeeds again."""

    def __init__(self, inner: SpanExporter, endpoint: str, failures: _LastMessage) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._failures = failures
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
                    reason=reason_of(
                        self._failures.text, self._endpoint, ca_setting=f"{PREFIX}CERTIFICATE"
                    ),
                    next="spans are dropped until the collector is available again",
                )
            else:
                _log.info("traces_resumed", endpoint=self._endpoint)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()
