"""Traces of real nodes as an OpenTelemetry collector receives them over HTTP."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from penstock.base.ids import NodeId
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.messages import AlterReassignments, PartitionTarget
from tests.support.dev_cluster import DevCluster
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.system

READY_S = PATIENCE_S
REQUEST_PARTS = ["ack", "append", "wal bulk"]


class Collector:
    """A collector that keeps every span with its service name."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, Any]] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(
                    self.rfile.read(int(self.headers["Content-Length"]))
                )
                collector.add(self.path, request)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def add(self, path: str, request: ExportTraceServiceRequest) -> None:
        assert path == "/v1/traces"
        with self._changed:
            for resource in request.resource_spans:
                (service,) = [
                    item.value.string_value
                    for item in resource.resource.attributes
                    if item.key == "service.name"
                ]
                self._spans += [
                    (service, span) for scope in resource.scope_spans for span in scope.spans
                ]
            self._changed.notify_all()

    def wait(self, reached: Callable[[list[tuple[str, Any]]], bool]) -> list[tuple[str, Any]]:
        with self._changed:
            assert self._changed.wait_for(lambda: reached(self._spans), READY_S), [
                (service, span.name) for service, span in self._spans
            ]
            return list(self._spans)

    @contextmanager
    def running(self) -> "Iterator[Collector]":
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}


def produce(bootstrap: str, topic: str, count: int) -> int:
    """Send one request per record, one after the other. Return the number of
    acknowledged records.
    """
    done: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "tracer"})
    for number in range(count):
        producer.produce(topic, str(number), on_delivery=lambda error, _: done.append(error))
        producer.flush(READY_S)
    return done.count(None)


async def move(controller: str, topic: str, target: int) -> None:
    client = ControllerClient([controller])
    try:
        requested = PartitionTarget(topic=topic, partition=0, replicas=[NodeId(target)])
        items = (
            await client.alter_reassignments(
                AlterReassignments(partitions=[requested]), timeout_s=READY_S
            )
        ).items
        assert not items[0].status, items[0].detail
    finally:
        await client.close()


def names_of(spans: list[tuple[str, Any]]) -> list[str]:
    return [span.name for _, span in spans]


def test_produce_requests_and_moves_are_traced_through_every_step(tmp_path: Path) -> None:
    settings = "--set", "traces.sample.per.million=1000000", "--store", f"file:{tmp_path}"
    with (
        Collector().running() as collector,
        DevCluster(
            [
                "--brokers",
                "2",
                "--topics",
                "traced:1",
                "--set",
                f"traces.otlp.endpoint={collector.endpoint}",
                *settings,
            ]
        ) as cluster,
    ):
        assert produce(cluster.bootstrap, "traced", 3) == 3
        spans = collector.wait(
            lambda spans: all(
                names_of(spans).count(name) >= 3 for name in ("produce", "wal put", *REQUEST_PARTS)
            )
        )
        check_requests(spans, 3)
        source = leader(cluster.bootstrap, "traced")
        for target in (1 - source, source):
            asyncio.run(move(cluster.state().controller, "traced", target))
            spans = collector.wait(lambda spans, target=target: is_moved_to(spans, target))
        check_moves(spans)


def leader(bootstrap: str, topic: str) -> int:
    return int(
        Producer({"bootstrap.servers": bootstrap})
        .list_topics(topic, READY_S)
        .topics[topic]
        .partitions[0]
        .leader
    )


def is_moved_to(spans: list[tuple[str, Any]], target: int) -> bool:
    return any(
        span.name == "move" and attributes(span)["penstock.move.target"] == target
        for _, span in spans
    )


def check_requests(spans: list[tuple[str, Any]], count: int) -> None:
    """Check that each request has its own trace, in which the PUT is a child span and the batching
    wait links to the PUT.
    """
    roots = [(service, span) for service, span in spans if span.name == "produce"]
    assert len(roots) == count
    for service, root in roots:
        assert (service, attributes(root)["messaging.client.id"], root.parent_span_id) == (
            "penstock-broker",
            "tracer",
            b"",
        )
        children = sorted(
            (span for _, span in spans if span.parent_span_id == root.span_id),
            key=lambda span: span.name,
        )
        assert [span.name for span in children] == [*REQUEST_PARTS, "wal put"]
        assert {span.trace_id for span in children} == {root.trace_id}
        ack, append, bulk, put = children
        assert [link.span_id for link in bulk.links] == [put.span_id]
        assert attributes(put)["penstock.object.key"].startswith("wal/")
        assert attributes(put)["penstock.object.bytes"] > 61
        times = [
            append.start_time_unix_nano,
            append.end_time_unix_nano,
            bulk.end_time_unix_nano,
            put.end_time_unix_nano,
        ]
        times += [ack.end_time_unix_nano]
        assert times == sorted(times)
        assert (append.start_time_unix_nano, ack.end_time_unix_nano) == (
            root.start_time_unix_nano,
            root.end_time_unix_nano,
        )


def check_moves(spans: list[tuple[str, Any]]) -> None:
    moves = [(service, span) for service, span in spans if span.name == "move"]
    for service, root in moves:
        reported = attributes(root)
        source, target = (
            f"broker {reported['penstock.move.source']}",
            f"broker {reported['penstock.move.target']}",
        )
        assert (service, reported["messaging.destination.name"], source != target) == (
            "penstock-controller",
            "traced",
            True,
        )
        steps = sorted(
            (span for _, span in spans if span.parent_span_id == root.span_id),
            key=lambda span: span.start_time_unix_nano,
        )
        by = [
            (attributes(step)["penstock.move.step"], attributes(step)["penstock.node"])
            for step in steps
        ]
        assert sorted(by) == [
            *[(1, "controller"), (2, source), (3, source), (4, source), (4, source)],
            *[(5, "controller"), (6, target), (6, target)],
        ]
        assert {step.trace_id for step in steps} == {root.trace_id}
        assert max(step.end_time_unix_nano for step in steps) == root.end_time_unix_nano


def test_unreachable_collector_does_not_affect_clients(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = (
        "--set",
        "traces.sample.per.million=1000000",
        "--set",
        "traces.otlp.endpoint=http://127.0.0.1:1",
    )
    with DevCluster(
        ["--brokers", "1", "--topics", "traced:1", "--store", "memory", *settings]
    ) as cluster:
        assert produce(cluster.bootstrap, "traced", 100) == 100
        assert cluster.stop() == 0
    log = capfd.readouterr().err
    assert log.count("traces_lost") <= 2, log
    assert "Traceback" not in log
