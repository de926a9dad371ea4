"""Measure what consumers of many idle partitions cost a broker, with and without fetch sessions
(KIP-227).
"""

import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from benchmarks import clients, harness
from benchmarks.harness import Measure
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.gen import fetch, metadata

PARTITIONS: Final = 1_000
_SECONDS: Final = 6.0
_ROUNDS: Final = 5
_WAIT_MS: Final = 500
"""The default of `fetch.max.wait.ms` of the Java consumer."""


def sessions() -> list[Measure]:
    """Fetch from 1,000 partitions without records for some seconds, twice per second."""
    with harness.server(store="memory:") as system:
        clients.create_topic(system.bootstrap, PARTITIONS)
        with WireClient(system.bootstrap) as client:
            topic_id = topic_id_of(client)
            rounds = [_round(system, client, topic_id) for _ in range(_ROUNDS)]
    idle, whole, incremental = (
        harness.quantile([found[at] for found in rounds], 0.5) for at in range(3)
    )
    return [
        Measure(
            f"consumer of {PARTITIONS:,} idle partitions in a fetch session, share of a core",
            max(0.0, incremental - idle),
            "%",
            1.0,
            "lower",
            note=f"without a session {max(0.0, whole - idle):.1f} %; an idle broker {idle:.1f} %",
        )
    ]


def _round(
    system: harness.ServerProcess, client: WireClient, topic_id: UUID
) -> tuple[float, float, float]:
    """Return the share of a core for an idle broker, and for fetches without and with a session."""
    return (
        _cpu_share(system, lambda: time.sleep(_SECONDS)),
        _cpu_share(system, lambda: _fetch(client, topic_id, in_session=False)),
        _cpu_share(system, lambda: _fetch(client, topic_id, in_session=True)),
    )


def _cpu_share(system: harness.ServerProcess, run: Callable[[], object]) -> float:
    """Return the CPU time of broker and controller during `run`, in percent of a core."""
    before, began = system.send_request()["cpu_s"], time.perf_counter()
    run()
    return 100 * (system.send_request()["cpu_s"] - before) / (time.perf_counter() - began)


def topic_id_of(client: WireClient) -> UUID:
    """Return the topic id once all partitions have a leader."""
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=clients.TOPIC)])
    while True:
        found = client.send_request(apis.METADATA, request, metadata.MetadataResponse)
        (topic,) = found.topics
        if topic.topic_id is not None and not any(part.error_code for part in topic.partitions):
            return topic.topic_id
        time.sleep(0.1)


def _fetch(client: WireClient, topic_id: UUID, *, in_session: bool) -> None:
    """Fetch as a consumer does, for some seconds."""
    requested: Sequence[fetch.FetchPartition] = [
        fetch.FetchPartition(partition=index, partition_max_bytes=1 << 20)
        for index in range(PARTITIONS)
    ]
    whole = [fetch.FetchTopic(topic_id=topic_id, partitions=requested)]
    session_id, epoch = 0, 0 if in_session else -1
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        request = fetch.FetchRequest(
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=50 << 20,
            session_id=session_id,
            session_epoch=epoch,
            topics=[] if epoch > 0 else whole,
        )
        found = client.send_request(apis.FETCH, request, fetch.FetchResponse)
        assert not found.error_code, found.error_code
        if in_session:
            assert found.session_id, "the broker gave no session"
            session_id, epoch = found.session_id, epoch + 1
