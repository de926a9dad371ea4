"""A Java producer with default settings and a store as slow as S3: brokers report the producer once
in the log, in the doctor and in the console, with advice on settings and their effect.
"""

import asyncio
import re
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from penstock.broker.partition import producer_watch
from penstock.broker.partition.producer_watch import BATCH_BYTES, IN_FLIGHT
from penstock.objectstore.faults import FaultConfig, FaultyStore, Latency
from penstock.objectstore.memory import MemoryStore
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.untuned import doctor_findings, followed
from tests.support.waiting import PATIENCE_S, until

RESPONSE_MS = 250.0
"""Long enough that the store, not the CPU of a busy machine, limits the rate."""
RECORD_BYTES = 1_000
TIMEOUT_S = PATIENCE_S
REASON = (
    r"it waits for responses: 5 requests of ([\d.]+) kB are in flight most of the time, and a"
    r" response takes ([\d,]+) ms, so it sends ([\d,]+) kB/s; requests of 262 kB allow up to"
    r" ([\d,]+) kB/s"
)
SETTINGS = "batch.size=262144 linger.ms=50"


async def test_java_producer_with_default_settings_is_reported_with_advice(
    java: JavaHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_watch, "WINDOW_S", 2.0)
    monkeypatch.setattr(producer_watch, "REQUESTS_MIN", 10)  # responses take 1 s at most
    store = FaultyStore(MemoryStore(), Random(1))

    async def rate_kb_s(cluster: Cluster, client: str, records: int, *settings: str) -> float:
        """Send records to one partition with Kafka's performance tool; return its measurements."""
        log = tmp_path / f"{client}.log"
        command = (
            *("--topic", "t", "--num-records", str(records), "--throughput", "-1"),
            *("--record-size", str(RECORD_BYTES), "--producer-props"),
            *(f"bootstrap.servers={cluster.bootstrap}", f"client.id={client}", *settings),
        )
        with java.application("org.apache.kafka.tools.ProducerPerformance", *command, log=log) as (
            process
        ):
            await until(lambda: process.poll() is not None, TIMEOUT_S)
        (*_, total) = re.findall(r"([\d.]+) records/sec", log.read_text())
        return float(total) * RECORD_BYTES / 1_000

    async with Cluster(tmp_path / "cluster", store=store, load_report_interval_ms=50) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        await cluster.until_served("t")
        store.config = FaultConfig((Latency(RESPONSE_MS, RESPONSE_MS),))
        with capture_logs() as logs:
            untuned = await rate_kb_s(cluster, "java-default", 3_000)  # several measurement windows
            tuned = await rate_kb_s(cluster, "java-tuned", 20_000, *SETTINGS.split())
            async with followed(cluster) as live:
                await until(lambda: live.untuned_clients())
                shown = live.untuned_clients()
            found = await doctor_findings(cluster)
    (event,) = (event for event in logs if event["event"] == "producer_untuned")
    assert (event["client_id"], event["settings"]) == ("java-default", SETTINGS)
    assert [(client.client_id, client.settings) for client in shown] == [("java-default", SETTINGS)]
    named = re.fullmatch(REASON, event["reason"])
    assert named
    assert re.fullmatch(REASON, shown[0].reason), "of a later window"
    assert [SETTINGS in finding and "java-default" in finding for finding in found] == [True]
    request_kb, response_ms, now, then = (float(word.replace(",", "")) for word in named.groups())
    assert response_ms >= RESPONSE_MS
    assert now < 1.5 * possible_kb_s(request_kb, response_ms)
    assert then == pytest.approx(possible_kb_s(BATCH_BYTES / 1_000, response_ms), rel=0.01)
    assert untuned < tuned < 1.5 * possible_kb_s(BATCH_BYTES / 1_000, RESPONSE_MS)


def possible_kb_s(request_kb: float, response_ms: float) -> float:
    """Return the rate with the maximum number of requests always in flight."""
    return IN_FLIGHT * request_kb / response_ms * 1_000
