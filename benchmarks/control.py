"""Measure how long control requests wait under full produce and fetch load."""

import subprocess
import sys
import time
from typing import Final

from benchmarks import clients, harness
from benchmarks.harness import Measure
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.gen import heartbeat, metadata

_SECONDS: Final = 10.0
_PAUSE_S: Final = 0.01
_PARTITIONS: Final = 4
_LOAD: Final = f"""
import sys
from benchmarks import clients
bootstrap, kind = sys.argv[1:]
if kind == "produce":
    clients.produce_for(bootstrap, 3600, partitions={_PARTITIONS})
clients.consume_all(bootstrap, 1 << 60, partitions={_PARTITIONS})
"""


def control() -> list[Measure]:
    """Request metadata and send heartbeats while a producer and a consumer run at full speed, each
    in its own process.
    """
    with harness.server(store="memory:", log_cache_bytes_max=1 << 30) as system:
        clients.create_topic(system.bootstrap, _PARTITIONS)
        quiet = _latencies_ms(system.bootstrap)
        clients.produce_for(system.bootstrap, 0.5, partitions=_PARTITIONS)
        load = [
            subprocess.Popen(
                [sys.executable, "-c", _LOAD, system.bootstrap, kind],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for kind in ("produce", "consume")
        ]
        try:
            time.sleep(2)  # until both are running
            before = system.send_request()["cpu_s"]
            busy = _latencies_ms(system.bootstrap)
            share = 100 * (system.send_request()["cpu_s"] - before) / _SECONDS
            assert all(process.poll() is None for process in load), "the load ended"
        finally:
            for process in load:
                process.kill()
                process.wait()
    return [
        Measure(
            "Metadata and Heartbeat beside full produce and fetch load, p99",
            harness.quantile(busy, 0.99),
            "ms",
            20.0,
            "lower",
            note=f"p50 {harness.quantile(busy, 0.5):.1f} ms; without load p99"
            f" {harness.quantile(quiet, 0.99):.1f} ms; the broker used {share:.0f} % of a core",
        )
    ]


def _latencies_ms(bootstrap: str) -> list[float]:
    """Return response times, with one request every 10 ms."""
    requested = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=clients.TOPIC)])
    beat = heartbeat.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    found: list[float] = []
    with WireClient(bootstrap) as client:
        end = time.perf_counter() + _SECONDS
        while time.perf_counter() < end:
            began = time.perf_counter()
            client.send_request(apis.METADATA, requested, metadata.MetadataResponse)
            between = time.perf_counter()
            client.send_request(apis.HEARTBEAT, beat, heartbeat.HeartbeatResponse)
            found += [1_000 * (between - began), 1_000 * (time.perf_counter() - between)]
            time.sleep(_PAUSE_S)
    return found
