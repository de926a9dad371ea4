"""Measure the timeout of a waiting request: one event loop timer, inserted and canceled among a
million others, compared with one in a timing wheel (docs/design/produce.md).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import uvloop

from benchmarks import clients, harness
from benchmarks.harness import Measure
from benchmarks.sessions import topic_id_of
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.gen import fetch

PENDING: Final = 1_000_000
_COUNT: Final = 20_000
_ROUNDS: Final = 7
_FETCHES: Final = 300
_WAIT_MS: Final = 1
_DELAY_S: Final = 0.5
"""The default of `fetch.max.wait.ms` of the Java consumer."""


def timers() -> list[Measure]:
    """Compare an event loop timer, a wheel timer, and the total cost of a waiting Fetch."""
    loop_us, wheel_us = _loop_timer_us(), _wheel_timer_us()
    fetch_us = _waiting_fetch_us()
    return [
        Measure(
            f"deadline of a waiting Fetch beside {PENDING:,} others, share of its CPU",
            100 * loop_us / fetch_us,
            "%",
            5.0,
            "lower",
            note=f"uvloop {loop_us:.1f} us, a wheel in Python {wheel_us:.1f} us,"
            f" the Fetch {fetch_us:.0f} us",
        )
    ]


def _loop_timer_us() -> float:
    async def measure() -> float:
        loop = asyncio.get_running_loop()
        held = [loop.call_later(300 + at % 300, _nothing) for at in range(PENDING)]

        def once() -> None:
            loop.call_later(_DELAY_S, _nothing).cancel()

        found = _median_us(once)
        for timer in held:
            timer.cancel()
        return found

    return uvloop.run(measure())


class _Wheel:
    """The cheapest possible wheel: buckets of 1 ms, in which canceled timers stay until the bucket
    is due. A real wheel needs levels and a tick of the loop.
    """

    def __init__(self) -> None:
        self.buckets = [deque[list[Callable[[], None] | None]]() for _ in range(1 << 16)]
        self.now_ms = 0

    def call_later(
        self, delay_s: float, what: Callable[[], None]
    ) -> list[Callable[[], None] | None]:
        timer: list[Callable[[], None] | None] = [what]
        self.buckets[(self.now_ms + int(delay_s * 1_000)) & 0xFFFF].append(timer)
        return timer


def _wheel_timer_us() -> float:
    wheel = _Wheel()
    for at in range(PENDING):
        wheel.call_later((at % 60_000) / 1_000, _nothing)

    def once() -> None:
        wheel.call_later(_DELAY_S, _nothing)[0] = None

    return _median_us(once)


def _waiting_fetch_us() -> float:
    """Return the broker's CPU time for one Fetch of one partition that times out."""
    requested = fetch.FetchPartition(partition=0, partition_max_bytes=1 << 20)
    with harness.server(store="memory:") as system:
        clients.create_topic(system.bootstrap, 1)
        with WireClient(system.bootstrap) as client:
            topic = fetch.FetchTopic(topic_id=topic_id_of(client), partitions=[requested])
            request = fetch.FetchRequest(
                max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=1 << 20, topics=[topic]
            )

            def send_request() -> None:
                client.send_request(apis.FETCH, request, fetch.FetchResponse)

            rounds: list[float] = []
            for _ in range(_ROUNDS):
                before = system.send_request()["cpu_s"]
                for _ in range(_FETCHES):
                    send_request()
                rounds.append((system.send_request()["cpu_s"] - before) / _FETCHES * 1e6)
    return harness.quantile(rounds, 0.5)


def _median_us(once: Callable[[], None]) -> float:
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        for _ in range(_COUNT):
            once()
        rounds.append((time.process_time() - began) / _COUNT * 1e6)
    return harness.quantile(rounds, 0.5)


def _nothing() -> None:
    pass
