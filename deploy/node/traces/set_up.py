"""Set up tracing if the process has an endpoint for traces.

Invariant: without an endpoint no module of OpenTelemetry is imported. The TLS files in its
variables are checked first; otherwise the SDK would fail at each request.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.base.extras import install_hint
from penstock.deploy.errors import UsageError
from penstock.deploy.node.otlp import TRACES, ReceiverFiles

if TYPE_CHECKING:
    from penstock.controller.active.move_traces import MoveListener
    from penstock.deploy.node.config.definition import ProcessConfig
    from penstock.deploy.node.traces.export import Exporter
    from penstock.stream.wal.tracing import Tracing


@contextmanager
def of_requests(config: "ProcessConfig") -> "Generator[Tracing | None]":
    """Yield the tracer of a broker. Raises UsageError if the extra or a file is missing."""
    with _exporter(config, "penstock-broker") as exporter:
        if exporter is None:
            yield None
            return
        from random import random

        from penstock.deploy.node.traces.requests import RequestTracing

        yield RequestTracing(
            exporter.tracer,
            lambda: random() * 1_000_000 < config.traces_sample_per_million,  # noqa: S311
        )


@contextmanager
def of_moves(config: "ProcessConfig") -> "Generator[MoveListener | None]":
    """Yield the tracer of a controller. Raises UsageError if the extra or a file is missing."""
    with _exporter(config, "penstock-controller") as exporter:
        if exporter is None:
            yield None
            return
        from penstock.deploy.node.traces.moves import MoveSpans

        yield MoveSpans(exporter.tracer).moved


@contextmanager
def _exporter(config: "ProcessConfig", service: str) -> "Generator[Exporter | None]":
    if not config.traces_otlp_endpoint:
        yield None
        return
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise UsageError(
            "traces.otlp.endpoint is set, but OpenTelemetry is not installed:"
            f" {install_hint('traces')}"
        )
    from penstock.deploy.node.traces.export import Exporter

    ReceiverFiles.of(os.environ, TRACES).context()
    exporter = Exporter(config.traces_otlp_endpoint, service)
    try:
        yield exporter
    finally:
        exporter.close()
