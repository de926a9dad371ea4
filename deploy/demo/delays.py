"""Compute departure delays per carrier from the file, for comparison with Spark's result.

Invariant: counts and sums are whole minutes and a mean is their quotient as a float, as in Spark,
so equal means have equal bits. Pure.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from penstock.deploy.demo.flights import Flight


class Delay(NamedTuple):
    """Delays of one carrier. departed: flights with a departure delay; the others were canceled.
    mean_minutes: None if no flight departed.
    """

    carrier: str
    flights: int
    departed: int
    minutes: int
    mean_minutes: float | None


class _Value(msgspec.Struct):
    carrier: str
    dep_delay: int | None


_decode: Final = msgspec.json.Decoder(_Value).decode


def delays_in(flights: Iterable[Flight]) -> list[Delay]:
    """Return the delays, sorted by carrier."""
    found: dict[str, tuple[int, int, int]] = {}
    for flight in flights:
        value = _decode(flight.value)
        count, departed, minutes = found.get(value.carrier, (0, 0, 0))
        delay = value.dep_delay
        found[value.carrier] = (count + 1, departed + (delay is not None), minutes + (delay or 0))
    return sorted(
        Delay(carrier, count, departed, minutes, minutes / departed if departed else None)
        for carrier, (count, departed, minutes) in found.items()
    )


def difference(file: list[Delay], spark: list[Delay]) -> str:
    """Describe the first difference, or return ""."""
    if [item.carrier for item in file] != [item.carrier for item in spark]:
        return f"Spark found other carriers: {', '.join(item.carrier for item in spark)}"
    for have, got in zip(file, spark, strict=True):
        if have != got:
            return (
                f"carrier {have.carrier}: the file has {have[1:]}, Spark found {got[1:]} (flights,"
                " departed, minutes, average)"
            )
    return ""
