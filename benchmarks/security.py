"""Measure the cost of TLS and SCRAM compared with a plain listener, and many concurrent logins.

The eight clients that log in use one CPU, mostly for PBKDF2. For the last row they log in to
another broker on this machine, which shows their own share of the p99.
"""

import multiprocessing
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Final, Literal

from benchmarks import clients, harness
from benchmarks.harness import Measure
from penstock.base.listeners import SecurityProtocol
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.local.certificates import Authority
from penstock.deploy.private_files import write_private

_LISTENER: Final = "SASL_SSL"
_MECHANISM: Final = "SCRAM-SHA-256"
_USER: Final = "bench"
_PASSWORD: Final = "bench secret"
_PAIRS: Final = int(os.environ.get("BENCH_SECURITY_PAIRS", "5"))
_SECONDS: Final = float(os.environ.get("BENCH_SECONDS", "4"))
_CONNECTIONS: Final = 8
_LOGINS: Final = 1_000
_LOGINS_AT_ONCE: Final = 8
_QUIET_S: Final = 6
_LEAVE_S_MAX: Final = 60
_BATCH_CONNECTIONS: Final = 4


@dataclass(frozen=True, slots=True)
class _System:
    """Addresses of the two listeners of a broker."""

    plain: str
    secure: str
    security: ClientSecurity


@dataclass(frozen=True, slots=True)
class _Events:
    """Events to synchronize with the process whose clients log in."""

    ready: Event
    logged_in: Event
    measured: Event


def security() -> list[Measure]:
    """Compare the listeners of one broker in alternating pairs, and log in a thousand times."""
    rates: list[tuple[float, float]] = []
    sinks: list[tuple[float, float]] = []
    batches: list[tuple[float, float]] = []
    requests: list[tuple[float, float]] = []
    for _ in range(_PAIRS):
        with _system() as system:
            properties = system.security.properties()
            plain = clients.produce_for(system.plain, _SECONDS / 2)
            secure = clients.produce_for(system.secure, _SECONDS / 2, settings=properties)
            rates.append((secure.mb_per_s, plain.mb_per_s))
            sinks.append((_sink_rate(system, is_secure=True), _sink_rate(system, is_secure=False)))
        with _system() as system:
            batches.append((_batch_rate(system, is_secure=True), _batch_rate(system)))
        with _system() as system:
            per_s = clients.small_requests_per_s(system.plain, _CONNECTIONS, _SECONDS / 2)
            logged_in = [_logged_in(system).connection for _ in range(_CONNECTIONS)]
            requests.append((clients.small_requests_over(logged_in, _SECONDS / 2), per_s))
    return [
        _compared(
            f"produce, 1 MB batches, TLS and SCRAM / plain, broker with {ssl.OPENSSL_VERSION}",
            rates,
            "MB/s",
            0.6,
        ),
        _compared("the same, bare sink with TLS / plain: what TLS itself costs", sinks, "MB/s", 0),
        _compared("the same, batches in TLS records of 16 KiB by bare sockets", batches, "MB/s", 0),
        _compared(
            f"small requests (100 B, {_CONNECTIONS} connections), TLS and SCRAM / plain",
            requests,
            "1/s",
            0.7,
        ),
        *_logins(),
    ]


def _sink_rate(system: _System, *, is_secure: bool) -> float:
    directory = Path(system.security.ca).parent
    with harness.sink(str(directory / "broker.pem") if is_secure else "") as address:
        settings = {"security.protocol": "SSL", "ssl.ca.location": system.security.ca}
        return clients.produce_for(
            address, _SECONDS / 2, settings=settings if is_secure else None
        ).mb_per_s


def _batch_rate(system: _System, *, is_secure: bool = False) -> float:
    if is_secure:
        sockets = [_logged_in(system).connection for _ in range(_BATCH_CONNECTIONS)]
    else:
        host, _, port = system.plain.rpartition(":")
        sockets = [socket.create_connection((host, int(port))) for _ in range(_BATCH_CONNECTIONS)]
    return clients.batches_over(sockets, _SECONDS / 2).mb_per_s


def _compared(
    name: str,
    pairs: list[tuple[float, float]],
    unit: str,
    bar: float,
    better: Literal["higher", "lower"] = "higher",
) -> Measure:
    """Return the pair with the median ratio."""
    middle = median(value / limit for value, limit in pairs)
    value, limit = min(pairs, key=lambda pair: abs(pair[0] / pair[1] - middle))
    return Measure(name, value, unit, bar, better, limit)


def _logins() -> list[Measure]:
    took_s: list[float] = []
    here: list[tuple[float, float]] = []
    elsewhere: list[tuple[float, float]] = []
    for _ in range(_PAIRS):
        with _system() as system, _system() as other:
            quiet_ms = harness.quantile(_produced(system, lambda: True, _QUIET_S), 0.99)
            took, here_ms = _during_logins(system, system)
            _, elsewhere_ms = _during_logins(system, other)
        took_s.append(took)
        here.append((here_ms, quiet_ms))
        elsewhere.append((elsewhere_ms, quiet_ms))
    name = "produce at 5 MB/s during these logins, p99"
    return [
        Measure(f"{_LOGINS:,} logins by SCRAM over TLS", median(took_s), "s", 10, "lower"),
        _compared(f"{name} / without", here, "ms", 2, "lower"),
        _compared("the same while they log in at another broker", elsewhere, "ms", 2, "lower"),
    ]


def _during_logins(system: _System, target: _System) -> tuple[float, float]:
    """Return the seconds for the logins at `target`, and the p99 of Produce at `system` during them
    in milliseconds.
    """
    context = multiprocessing.get_context("spawn")
    events = _Events(context.Event(), context.Event(), context.Event())
    took_s = context.Value("d", 0.0)
    process = context.Process(target=_log_in, args=(target, events, took_s))
    process.start()
    while not events.ready.wait(1) and process.is_alive():
        pass
    latencies_ms = _produced(system, lambda: process.is_alive() and not events.logged_in.is_set())
    events.measured.set()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the logins ended with {process.exitcode}")
    return took_s.value, harness.quantile(latencies_ms, 0.99)


def _produced(system: _System, goes_on: Callable[[], bool], seconds: int = 600) -> list[float]:
    """Return the latencies of Produce in milliseconds, over whole seconds."""
    latencies_ms: list[float] = []
    for _ in range(seconds):
        if not goes_on():
            break
        latencies_ms += clients.produce_latencies_ms(system.plain, 5e6, 1)
    return latencies_ms


def _log_in(system: _System, events: _Events, took_s: object) -> None:
    """Log in on new connections, and keep them until the measurement is over."""
    events.ready.set()
    began = time.perf_counter()
    with ThreadPoolExecutor(_LOGINS_AT_ONCE) as pool:
        found = list(pool.map(_logged_in, [system] * _LOGINS))
    took_s.value = time.perf_counter() - began  # type: ignore[attr-defined]
    events.logged_in.set()
    events.measured.wait(_LEAVE_S_MAX)
    for client in found:
        client.close()


def _logged_in(system: _System) -> WireClient:
    return WireClient(system.secure, system.security)


@contextmanager
def _system() -> Iterator[_System]:
    """Start a broker with a topic."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-security-") as directory:
        root = Path(directory)
        authority = Authority.make("bench CA")
        (root / "ca.pem").write_bytes(authority.pem)
        write_private(root / "broker.pem", authority.issue("broker", hosts=["127.0.0.1"]).keystore)
        write_private(root / "users", f"{_USER}:{_PASSWORD}\n".encode())
        with harness.server(store="memory:", security_dir=directory) as server:
            port = server.send_request()["ports"][_LISTENER]
            clients.create_topic(server.bootstrap)
            clients.produce_for(server.bootstrap, 0.1)
            yield _System(
                server.bootstrap,
                f"127.0.0.1:{port}",
                ClientSecurity(
                    SecurityProtocol.SASL_SSL,
                    _MECHANISM,
                    _USER,
                    _PASSWORD,
                    ca=str(root / "ca.pem"),
                ),
            )
