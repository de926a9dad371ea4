"""Measure the cost of metrics: a broker without counters, and one with counters and a scrape per
second.

Both halves of a pair run in one process in alternating order. The half without counters keeps
integer additions per connection and partition, and one `await` per store request.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks import clients, harness
from benchmarks.harness import Measure

SCRAPE_INTERVAL_S: Final = 1.0
_ALLOWED: Final = 0.02


@contextlib.contextmanager
def scraped(port: int) -> Iterator[None]:
    """Scrape every second, first after 0.5 s, over a bare socket, which costs the client almost
    nothing.
    """
    over = threading.Event()

    def run() -> None:
        pause_s = SCRAPE_INTERVAL_S / 2
        while not over.wait(pause_s):
            pause_s = SCRAPE_INTERVAL_S
            with socket.create_connection(("127.0.0.1", port)) as asking:
                asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                size_bytes = 0
                while got := len(asking.recv(1 << 16)):
                    size_bytes += got
            assert size_bytes > 10_000, "no metrics came"

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _pair(
    system: harness.ServerProcess, port: int, measure: Callable[[], float], *, bare_first: bool
) -> tuple[float, float]:
    """Return the figures (with metrics, without)."""

    def bare() -> float:
        system.send_request("count-nothing")
        return measure()

    def metered() -> float:
        system.send_request("count")
        with scraped(port):
            return measure()

    if bare_first:
        without = bare()
        return metered(), without
    found = metered()
    return found, bare()


def cost(seconds: float, pairs_count: int) -> list[Measure]:
    """Measure producing in batches of 1 MB, which has a target; the server's CPU time for it, which
    varies less; and small requests, the worst case.
    """
    rates: list[tuple[float, float]] = []
    cpu: list[tuple[float, float]] = []
    for number in range(pairs_count):
        port = harness.free_port()
        with harness.server(
            store="memory:", log_cache_bytes_max=3 << 30, metrics_port=port
        ) as system:
            clients.create_topic(system.bootstrap)
            clients.produce_for(system.bootstrap, 0.2)
            spent: list[float] = []

            def produced(
                system: harness.ServerProcess = system, spent: list[float] = spent
            ) -> float:
                before = system.send_request()["cpu_s"]
                rate = clients.produce_for(system.bootstrap, seconds)
                spent.append(
                    (system.send_request()["cpu_s"] - before)
                    * 1e12
                    / (rate.records * clients.RECORD_BYTES)
                )
                return rate.mb_per_s

            bare_first = number % 2 == 0
            rates.append(_pair(system, port, produced, bare_first=bare_first))
            cpu.append((spent[1], spent[0]) if bare_first else (spent[0], spent[1]))
    rate, rate_bare = _median(rates)
    cpu_us, cpu_bare_us = _median(cpu)
    small, small_bare = _small_requests(seconds, pairs_count)
    return [
        Measure(
            "produce with metrics and a scrape a second / without",
            rate,
            "MB/s",
            1 - _ALLOWED,
            "higher",
            rate_bare,
        ),
        Measure(
            "the same: CPU of the server for each MB",
            cpu_us,
            "us",
            1 + _ALLOWED,
            "lower",
            cpu_bare_us,
        ),
        Measure(
            "small requests with metrics and a scrape a second / without",
            small,
            "1/s",
            1 - _ALLOWED,
            "higher",
            small_bare,
        ),
    ]


def _small_requests(seconds: float, pairs_count: int) -> tuple[float, float]:
    port = harness.free_port()
    with harness.server(store="memory:", metrics_port=port) as system:
        clients.create_topic(system.bootstrap)
        clients.produce_for(system.bootstrap, 0.1)

        def requests_per_s() -> float:
            return clients.small_requests_per_s(system.bootstrap, 8, seconds)

        return _median(
            [
                _pair(system, port, requests_per_s, bare_first=number % 2 == 0)
                for number in range(pairs_count)
            ]
        )


def _median(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the pair whose ratio is the median."""
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
