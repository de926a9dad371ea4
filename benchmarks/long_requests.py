"""Measure requests of maximum size for each API: longest event loop step, CPU time and memory.

Controller, broker and client share one process, with authorization. A step is the CPU time of the
thread between two iterations of the event loop. The CPU time is that of all threads until the
response, the minimum of CPU_RUNS runs. The memory is the peak of additional allocations.
"""

import asyncio
import struct
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import uvloop

from benchmarks.harness import Measure
from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.collector import tune_collector
from penstock.broker.coordination.internal_topics import INTERNAL_TOPICS, ensure_topic
from penstock.broker.requests.long_requests import SWITCH_INTERVAL_S
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.protocol import framing
from penstock.protocol.codecs import CODECS
from tests.support.cluster import Cluster
from tests.support.long_request import LongRequest
from tests.support.long_requests import LONG_REQUESTS

_PATIENT: Final = {"session_timeout_ms": 60_000, "session_grace_ms": 60_000}
_RECEIVE_BYTES: Final = 1 << 16
_TIMEOUT_S: Final = 120
CPU_RUNS: Final = 3
COSTLIEST_COUNT: Final = 5


@dataclass(frozen=True, slots=True)
class _Cost:
    name: str
    size_mb: float
    step_ms: float
    cpu_ms: float
    memory_mb: float


def long_requests() -> list[Measure]:
    """Return the worst values of all APIs."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    costs = uvloop.run(_all_costs())
    slowest = max(costs, key=lambda cost: cost.step_ms)
    costliest = sorted(costs, key=lambda cost: cost.cpu_ms, reverse=True)[:COSTLIEST_COUNT]
    largest = max(costs, key=lambda cost: cost.memory_mb)
    return [
        Measure(
            "longest step of the event loop for a request as long as its API allows",
            slowest.step_ms,
            "ms",
            50,
            "lower",
            note=slowest.name,
        ),
        Measure(
            "CPU time in all for a request as long as its API allows",
            costliest[0].cpu_ms,
            "ms",
            100,
            "lower",
            note=", ".join(
                f"{cost.name} of {cost.size_mb:.1f} MB {cost.cpu_ms:.0f} ms" for cost in costliest
            ),
        ),
        Measure(
            "memory for a request as long as its API allows",
            largest.memory_mb,
            "MB",
            64,
            "lower",
            note=largest.name,
        ),
    ]


async def _all_costs() -> list[_Cost]:
    security = SecurityConfig(authorizer=STANDARD_AUTHORIZER, allow_everyone_if_no_acl_found=True)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        async with Cluster(
            Path(directory), controller_settings=_PATIENT, security=security
        ) as cluster:
            topics = [NewTopic(name="orders")]
            await cluster.broker.client.create_topics(CreateTopics(topics=topics))
            await cluster.until_served("orders")
            for internal in sorted(INTERNAL_TOPICS):
                await ensure_topic(cluster.broker, internal)
                await cluster.until_served(internal)
            tune_collector()
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            return [
                await _cost(cluster.broker.port, name, long) for name, long in LONG_REQUESTS.items()
            ]


async def _cost(port: int, name: str, long: LongRequest) -> _Cost:
    await _send_request(port, _frame(long, 1))  # whichever comes first
    frame = _frame(long, long.count)
    steps_s: list[float] = []
    counting = asyncio.create_task(_count(steps_s))
    await _send_request(port, frame)
    counting.cancel()
    cpu_s = [await _cpu_s_of(port, frame) for _ in range(CPU_RUNS)]
    tracemalloc.start()  # tracing slows everything down, so the request is sent again
    await _send_request(port, frame)
    memory_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return _Cost(name, len(frame) / 1e6, max(steps_s) * 1_000, min(cpu_s) * 1_000, memory_mb)


async def _cpu_s_of(port: int, frame: bytes) -> float:
    began_s = time.process_time()
    await _send_request(port, frame)
    return time.process_time() - began_s


async def _count(steps_s: list[float]) -> None:
    last_s = time.thread_time()
    while True:
        await asyncio.sleep(0)
        now_s = time.thread_time()
        steps_s.append(now_s - last_s)
        last_s = now_s


def _frame(long: LongRequest, count: int) -> bytes:
    encode = CODECS[long.api.key].encode_request
    return bytes(framing.encode_request_frame(long.api, long.version, 1, encode, long.make(count)))


async def _send_request(port: int, frame: bytes) -> None:
    """Send a request, and discard the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(_TIMEOUT_S):
        writer.write(frame)
        (left,) = struct.unpack(">i", await reader.readexactly(4))
        while left:
            left -= len(await reader.read(min(left, _RECEIVE_BYTES)))
    writer.close()
