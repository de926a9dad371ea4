"""Brokers detect producers whose settings limit their throughput on an object store, and report
each client once.
"""

from typing import Any, cast

import pytest

from penstock.broker.partition import producer_watch as watch
from penstock.broker.partition.producer_watch import (
    CLIENTS_MAX,
    CONNECTIONS_MAX,
    LISTED_S,
    WINDOW_S,
    ProducerWatch,
)

KB = 1_000
RESPONSE_S = 0.1
"""Typical latency of an object store."""


def bursts(
    found: ProducerWatch,
    *,
    size_bytes: int,
    in_flight: int,
    records: int | None = None,
    took_s: float = RESPONSE_S,
    pause_s: float = 0.0,
    connection: int = 1,
    client_id: str = "shop",
) -> None:
    """Send `in_flight` requests together whenever all responses have arrived, for one window."""
    now_s = 0.0
    while now_s <= WINDOW_S:
        for _ in range(in_flight):
            found.began(
                connection, client_id, "10.0.0.9", now_s, size_bytes=size_bytes, records=records
            )
        now_s += took_s
        for _ in range(in_flight):
            found.ended(connection, now_s, took_s)
        now_s += pause_s


@pytest.mark.parametrize(
    ("sent", "settings"),
    [
        ({"size_bytes": 16 * KB, "in_flight": 5}, "batch.size=262144 linger.ms=50"),
        ({"size_bytes": 16 * KB, "in_flight": 5, "records": 1}, "batch.size=262144 linger.ms=50"),
        ({"size_bytes": 1 * KB, "in_flight": 20, "records": 1}, "linger.ms=50"),
        ({"size_bytes": 1 * KB, "in_flight": 20, "records": 30}, ""),
        ({"size_bytes": 1 * KB, "in_flight": 20}, ""),
        ({"size_bytes": 200 * KB, "in_flight": 5}, ""),
        ({"size_bytes": 16 * KB, "in_flight": 4}, ""),
        ({"size_bytes": 16 * KB, "in_flight": 5, "took_s": 0.001, "pause_s": 0.02}, ""),
        ({"size_bytes": 16 * KB, "in_flight": 5, "pause_s": 0.1}, ""),
        ({"size_bytes": 1 * KB, "in_flight": 1, "records": 1}, ""),
    ],
)
def test_the_advice_contains_the_setting_that_helps(sent: dict[str, float], settings: str) -> None:
    found = ProducerWatch()
    bursts(found, **cast("Any", sent))
    advised = [client.advice.settings for client in found.judge(WINDOW_S + 0.2)]
    assert " ".join(advised) == settings


def test_the_advice_contains_the_expected_improvement() -> None:
    found = ProducerWatch()
    bursts(found, size_bytes=16 * KB, in_flight=5)
    (client,) = found.judge(WINDOW_S + RESPONSE_S)
    assert "5 requests of 16.0 kB are in flight" in client.advice.reason
    assert "it sends 800 kB/s" in client.advice.reason
    assert "up to 13,107 kB/s" in client.advice.reason
    bursts(found, size_bytes=KB, in_flight=20, records=1, connection=2, client_id="single")
    (client,) = found.judge(2 * (WINDOW_S + RESPONSE_S))
    assert "1.0 records each; with this setting about 20 requests/s" in client.advice.reason


def test_each_client_is_reported_once_and_listed_for_a_while() -> None:
    found = ProducerWatch()
    for connection in (1, 2):
        bursts(found, size_bytes=16 * KB, in_flight=5, connection=connection)
    assert len(found.judge(WINDOW_S + RESPONSE_S)) == 1
    assert found.judge(WINDOW_S + RESPONSE_S) == []
    (listed,) = found.listed(WINDOW_S + RESPONSE_S + LISTED_S)
    assert (listed.client_id, listed.host) == ("shop", "10.0.0.9")
    assert not found.listed(2 * WINDOW_S + LISTED_S)


def test_the_number_of_watched_clients_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ProducerWatch()
    for connection in range(CONNECTIONS_MAX + 10):
        found.began(connection, "c" * 10_000, "h", 0.0, size_bytes=1, records=None)
    found.ended(CONNECTIONS_MAX + 1, 1.0, 1.0)  # is not tracked
    found.judge(WINDOW_S)
    found.judge(2 * WINDOW_S)  # All are idle, so they can be replaced.
    monkeypatch.setattr(watch, "REQUESTS_MIN", 1)
    for connection in range(CLIENTS_MAX + 1):
        bursts(found, size_bytes=KB, in_flight=5, connection=connection, client_id=str(connection))
    found.judge(WINDOW_S + RESPONSE_S)
    names = [client.client_id for client in found.listed(WINDOW_S + RESPONSE_S)]
    assert names == [str(number) for number in range(1, CLIENTS_MAX + 1)]
