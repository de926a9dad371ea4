"""Run each server once for all tests, and print a table of stores with the tests that passed."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.support.store_servers import NAMES, NOT_RUN, StoreServer, store_server, version_of

COLUMNS: Final = ("contract", "failover", "scan", "spark", "demo")
_STORE: Final = "store"
"""A test property with the store and its table column, separated by a space."""


@pytest.fixture(scope="session", params=NAMES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreServer]:
    with store_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@dataclass
class Row:
    """Outcomes of the tests on one store, by column."""

    outcomes: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: float = 0
    reason: str = ""

    def cells(self) -> list[str]:
        if self.reason and not any(counts["passed"] for counts in self.outcomes.values()):
            return [f"not run: {self.reason}"]
        return [_cell(self.outcomes[column]) for column in COLUMNS] + [f"{self.seconds:.0f}"]


def _cell(counts: Counter[str]) -> str:
    if counts["failed"]:
        return f"FAIL {counts['failed']}"
    return f"pass {counts['passed']}" if counts["passed"] else "-"


_rows: Final[dict[str, Row]] = {}


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        names = item.callspec.params
        if "server" in names:
            item.user_properties.append((_STORE, f"{names['server']} {COLUMNS[0]}"))
        elif "stores" in names:
            column = item.originalname.split("_")[1]
            item.user_properties.append((_STORE, f"{names['stores']} {column}"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name != _STORE:
            continue
        store, column = str(value).split()
        row = _rows.setdefault(store, Row())
        row.seconds += report.duration
        if report.when == "call" or report.outcome != "passed":
            row.outcomes[column][report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            row.reason = report.longrepr[2].removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _rows:
        return
    terminalreporter.section("object stores")
    for name, version, *cells in (
        ("store", "version", *COLUMNS, "seconds"),
        *((name, version_of(name), *row.cells()) for name, row in _rows.items()),
        *((name, version, f"not run: {why}") for name, (version, why) in NOT_RUN.items()),
    ):
        line = f"{name:<18}{version:<20}" + "".join(f"{cell:<10}" for cell in cells)
        terminalreporter.write_line(line.rstrip())
