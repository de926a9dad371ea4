"""Measure the CPU seconds of each test, including the processes that it starts. After the tests,
list those that use more than `COSTLY` and have no `costly` marker with a reason; and with
`--cpu-files`, the files and shared fixtures that use the most.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

COSTLY = 5.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SECONDS = "cpu_seconds"
_SHARED = "cpu_seconds_of_shared_fixtures"
_REASON = "costly"


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants. Outside of Linux, running
    descendants are excluded.
    """
    times = os.times()
    ended = times.children_user + times.children_system
    return time.process_time() + ended + sum(map(_of_process, _children("self")))


def _of_process(pid: str) -> float:
    """Return the CPU time of a process, its children that have ended, and its descendants."""
    try:
        fields = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # the process has ended
        return 0.0
    return sum(map(int, fields[11:15])) * _TICK_S + sum(map(_of_process, _children(pid)))


def _children(pid: str) -> list[str]:
    found = list[str]()
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += Path("/proc", pid, "task", thread, "children").read_text().split()
    return found


class CpuSeconds:
    """A pytest plugin. The time of a shared fixture is not attributed to the first test that uses
    it.

    listed_count: how many files and shared fixtures to list.
    """

    def __init__(self, costly: float = COSTLY, listed_count: int = 0) -> None:
        self._costly = costly
        self._listed_count = listed_count
        self._before = cpu_seconds()
        self._shared = 0.0
        self._fixtures: list[tuple[str, float]] = []
        self._used: dict[str, float] = defaultdict(float)
        self._places: dict[str, float] = defaultdict(float)
        self._reasons: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before, shared = cpu_seconds(), self._shared
        try:
            return (yield)
        finally:
            # The measurement includes fixtures requested during its own setup.
            used, of_others = cpu_seconds() - before, self._shared - shared
            self._fixtures.append((f"{fixturedef.baseid}::{fixturedef.argname}", used - of_others))
            self._shared = shared + used

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Exclude the time spent on test collection."""
        self._before = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the figures to the last report of the test, which an xdist worker sends to the
        terminal. Each measurement takes a tenth of the time of an empty test.
        """
        report = yield
        if report.when != "teardown":
            return report
        now = cpu_seconds()
        report.user_properties.append((_SECONDS, now - self._before - self._shared))
        report.user_properties.append((_SHARED, self._fixtures))
        self._before, self._shared, self._fixtures = now, 0.0, []
        if marker := item.get_closest_marker("costly"):
            report.user_properties.append((_REASON, marker.args[0]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _SECONDS:
                self._used[report.nodeid] += value
            elif name == _SHARED:
                for fixture, used in value:
                    self._places[fixture] += used
            elif name == _REASON:
                self._reasons[report.nodeid] = value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        costly = {
            name: used
            for name, used in self._used.items()
            if used > self._costly and name not in self._reasons
        }
        if costly:
            terminalreporter.section(f"more than {self._costly:g} CPU s, without a reason")
        _list(terminalreporter, costly, len(costly))
        if self._listed_count:
            for name, used in self._used.items():
                self._places[name.partition("::")[0]] += used
            terminalreporter.section(f"CPU s, {sum(self._places.values()):.0f} in all")
            _list(terminalreporter, self._places, self._listed_count)


def _list(reporter: pytest.TerminalReporter, used_s: Mapping[str, float], count: int) -> None:
    for name, seconds in sorted(used_s.items(), key=lambda entry: -entry[1])[:count]:
        reporter.write_line(f"{seconds:6.1f} s  {name}")
