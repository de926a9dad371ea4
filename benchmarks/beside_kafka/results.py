"""Keep the newest result of each measurement in build/beside_kafka.json.

Rows that are measured separately thus still form one table.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.beside_kafka.rows import MEASUREMENTS, ROWS, Row

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "build" / "beside_kafka.json"


class Result(msgspec.Struct, frozen=True):
    """One measurement. values: by row key, then by system. failures: by system. date: in UTC. load:
    share of all cores that other processes used during the measurement, 0 to 1; above 0.1, the
    machine was busy. rounds: number of rounds of which the values are medians.
    """

    measurement: str
    values: dict[str, dict[str, float]]
    failures: dict[str, str]
    date: str
    commit: str
    machine: str
    load: float
    rounds: int

    @property
    def is_busy(self) -> bool:
        return self.load > 0.1


def load(file: Path = FILE) -> dict[str, Result]:
    """Return the stored results by measurement, without those of removed rows."""
    if not file.exists():
        return {}
    stored = msgspec.json.decode(file.read_bytes(), type=list[Result])
    return {result.measurement: result for result in stored if result.measurement in MEASUREMENTS}


def save(results: Mapping[str, Result], file: Path = FILE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    ordered = [results[name] for name in MEASUREMENTS if name in results]
    file.write_bytes(msgspec.json.format(msgspec.json.encode(ordered)) + b"\n")


def merged(old: Result | None, new: Result) -> Result:
    """Return the new result, with values from the old one for systems that it lacks."""
    if old is None:
        return new
    again = {system for values in new.values.values() for system in values} | set(new.failures)
    values = {
        key: {system: value for system, value in row.items() if system not in again}
        | new.values.get(key, {})
        for key, row in ({key: {} for key in new.values} | old.values).items()
        if key in ROWS
    }
    failures = {name: text for name, text in old.failures.items() if name not in again}
    return msgspec.structs.replace(
        new, values=values, failures=failures | new.failures, load=max(old.load, new.load)
    )


def rows_of(results: Mapping[str, Result]) -> list[tuple[Row, Mapping[str, float], Result]]:
    """Return the rows that have a value or a failure, in the order of the table."""
    return [
        (row, result.values.get(row.key, {}), result)
        for row in ROWS.values()
        if (result := results.get(row.measurement)) is not None
        and (result.values.get(row.key) or result.failures)
    ]


def systems_of(results: Mapping[str, Result], known: Sequence[str]) -> list[str]:
    """Return the systems in the results, in the order of `known`."""
    found = {
        system
        for result in results.values()
        for names in (*result.values.values(), result.failures)
        for system in names
    }
    return [name for name in known if name in found]


def commit() -> str:
    """Return the abbreviated commit of the checkout, followed by + if files are modified."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
