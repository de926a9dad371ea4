"""Edge cases of traces: several requests in one PUT, a fenced PUT, unsampled requests, and
OpenTelemetry not installed.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from random import Random

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock.base.errors import StreamError
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.load import load
from penstock.deploy.node.otlp import url_of
from penstock.deploy.node.traces.requests import RequestTracing
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.cache.log_cache import AppendEntry
from penstock.stream.config import StreamConfig
from penstock.stream.errors import WalFenced
from penstock.stream.format.builder import fence_object
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation
from penstock.stream.wal.append import WalAppend
from penstock.stream.wal.wal import Wal

ME = BrokerIncarnation(NodeId(1), NodeEpoch(1))
RECOVERER = BrokerIncarnation(NodeId(2), NodeEpoch(1))
FLAGS = "--store", "file:/x"


class TracedWal:
    """A WAL whose requests are traced in memory."""

    def __init__(self, is_chosen: Callable[[], bool] = lambda: True) -> None:
        self.store = MemoryStore()
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = RequestTracing(provider.get_tracer("test"), is_chosen)
        self.wal = Wal(
            self.store,
            ME,
            StreamConfig(wal_linger_ms=0),
            now_ms=lambda: Millis(0),
            rng=Random(1),
            on_durable=lambda bulk: self.tell(bulk.groups, None),
            on_failed=lambda error, groups: self.tell(groups, error),
            wal_store=IN_STORE,
            tracing=self.tracing,
        )
        self.next_offset = 0

    def tell(self, groups: list[WalAppend], error: StreamError | None) -> None:
        for _, done in groups:
            done(error)

    def request(self) -> "asyncio.Future[Exception | None]":
        """Append one record; the future completes with the response."""
        loop = asyncio.get_running_loop()
        appended: asyncio.Future[Exception | None] = loop.create_future()
        trace = self.tracing.begin(loop.time(), "client")

        def done(error: Exception | None) -> None:
            if trace is not None:
                trace.ended(["NOT_LEADER_OR_FOLLOWER"] if error else [])
            appended.set_result(error)

        payload = bytes(
            encode_batch(
                [Record(self.next_offset, 0, None, b"value")], base_offset=self.next_offset
            )
        )
        at, self.next_offset = self.next_offset, self.next_offset + 1
        size, now = len(payload), Millis(0)
        entry = AppendEntry(StreamId(1), Offset(at), Offset(at + 1), 1, now, now, size, payload)
        self.wal.append(
            ([entry], done),
            len(payload),
        )
        if trace is not None:
            trace.appended(done)
        return appended

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_a_put_belongs_to_its_first_request_and_links_to_the_others() -> None:
    traced = TracedWal()
    await asyncio.gather(traced.request(), traced.request(), traced.request())
    (put,) = traced.spans("wal put")
    first, *others = traced.spans("produce")
    assert put.parent is not None
    assert put.parent.span_id == id_of(first)
    assert [link.context.span_id for link in put.links] == [id_of(span) for span in others]
    assert [[link.context.span_id for link in span.links] for span in traced.spans("wal bulk")] == [
        [id_of(put)]
    ] * 3
    assert (
        len({span.context.trace_id for span in (first, *others) if span.context is not None}) == 3
    )
    assert put.attributes is not None
    assert put.attributes["penstock.wal.groups"] == 3


async def test_the_spans_of_a_fenced_put_and_its_requests_are_errors() -> None:
    traced = TracedWal()
    await traced.store.put(
        wal_key(ME, WalSequence(0), IN_STORE), fence_object(RECOVERER, WalSequence(0))
    )
    assert isinstance(await traced.request(), WalFenced)
    (put,), (request,) = traced.spans("wal put"), traced.spans("produce")
    assert (put.status.status_code, request.status.status_code) == (
        StatusCode.ERROR,
        StatusCode.ERROR,
    )
    assert request.status.description == "NOT_LEADER_OR_FOLLOWER"
    assert traced.spans("ack") == []


async def test_only_configured_principals_are_traced() -> None:
    choices = iter([False, True, False])
    traced = TracedWal(lambda: next(choices))
    await asyncio.gather(traced.request(), traced.request(), traced.request())
    assert [len(traced.spans(name)) for name in ("produce", "wal put", "ack")] == [1, 1, 1]
    traced = TracedWal(lambda: False)
    await traced.request()
    assert traced.spans("wal put") == []


async def test_a_group_that_never_reaches_a_put_is_dropped_with_its_request() -> None:
    traced = TracedWal()
    trace = traced.tracing.begin(asyncio.get_running_loop().time(), "client")
    assert trace is not None

    def done(_error: Exception | None) -> None:
        """Do nothing."""

    trace.appended(done)
    trace.ended(["NOT_LEADER_OR_FOLLOWER"])
    assert traced.tracing.put_began(WalSequence(0), [([], done)]) is None


def test_missing_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.deploy.node.config.definition import ProcessConfig
    from penstock.deploy.node.traces.set_up import of_moves, of_requests

    config = load("broker", [*FLAGS, "--traces-otlp-endpoint", "http://127.0.0.1:1"], {}).part(
        ProcessConfig
    )
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for of in (of_requests, of_moves):
        with (
            pytest.raises(UsageError, match=r'pip install "penstock-streams\[traces\]"'),
            of(config),
        ):
            pass
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        load("broker", [*FLAGS, "--traces-otlp-endpoint", "127.0.0.1:4318"], {})


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    code = (
        "import sys, penstock.broker.main, penstock.broker.node, penstock.controller.main\n"
        "from penstock.deploy.node.config.definition import ProcessConfig\n"
        "from penstock.deploy.node.config.load import load\n"
        "from penstock.deploy.node.traces.set_up import of_moves, of_requests\n"
        f"config = load('broker', {FLAGS}, {{}}).part(ProcessConfig)\n"
        "with of_requests(config) as tracing, of_moves(config) as moved:\n"
        "    print(tracing, moved, 'opentelemetry' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "None None False\n"
    )


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_the_path_is_added_to_endpoints_without_one(endpoint: str, url: str) -> None:
    assert url_of(endpoint, "/v1/traces") == url
