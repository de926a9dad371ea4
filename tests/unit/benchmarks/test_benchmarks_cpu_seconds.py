"""Which tests are listed as costly, and how CPU seconds of targets are compared with
their budget.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pytest_runs import ROOT
from tests.support.waiting import PATIENCE_S
from tools import lanes

_TESTS = """
import subprocess
import sys
import time

import pytest

BURN = "import time\\nwhile time.process_time() < 0.4: pass"


def burn():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass


@pytest.fixture(scope="module")
def shared():
    burn()


def test_that_shares_a_costly_fixture(shared):
    pass


def test_that_computes():
    burn()


@pytest.mark.costly("it has to")
def test_with_a_reason():
    burn()


def test_with_a_process_that_ends():
    subprocess.run([sys.executable, "-c", BURN], check=True)


@pytest.fixture
def process():
    process = subprocess.Popen(
        [sys.executable, "-c", BURN + "\\nprint('done', flush=True)\\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.communicate()


def test_with_a_process_that_is_killed(process):
    assert process.stdout.readline() == b"done\\n"


def test_cheap():
    pass
"""
_PLUGIN = """
from tests.support.cpu_seconds import CpuSeconds


def pytest_configure(config):
    config.addinivalue_line("markers", "costly(reason): x")
    config.pluginmanager.register(CpuSeconds(costly=0.3, listed_count=2))
"""


def test_costly_tests_without_a_reason_are_listed(tmp_path: Path) -> None:
    for name, text in {"test_some.py": _TESTS, "conftest.py": _PLUGIN, "pytest.ini": ""}.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-p", "no:cacheprovider", "-n", "1"],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = re.findall(r"^ +(\d\.\d) s  test_some\.py::test_(\w+)$", done.stdout, re.MULTILINE)
    assert {name for _, name in listed} == {
        "that_computes",
        "with_a_process_that_ends",
        "with_a_process_that_is_killed",
    }
    assert all(float(used) >= 0.4 for used, _ in listed)
    places = re.findall(r"^ +(\d\.\d) s  test_some\.py(::shared)?$", done.stdout, re.MULTILINE)
    assert [name for _, name in places] == ["", "::shared"]
    assert float(places[0][0]) >= 1.6
    assert float(places[1][0]) >= 0.4


def test_a_target_above_its_budget_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "budget.toml").write_text("above = 0\nbelow = 100\n")
    monkeypatch.setattr(lanes, "BUDGET", tmp_path / "budget.toml")
    monkeypatch.setattr(lanes, "MEASURED", tmp_path / "measured")
    for target, status in (("above", 0), ("below", 3), ("below", 0)):
        assert lanes.run(target, [sys.executable, "-c", f"raise SystemExit({status})"]) == status
    above, below = lanes.report().splitlines()[1:3]
    assert re.fullmatch(r"above +\d+ +\d+ +0  over budget", above)
    assert re.fullmatch(r"below +\d+ +\d+ +100", below)


@pytest.mark.parametrize(
    ("failing", "status", "flaky"),
    [
        ({"a": 1, "b": 1}, 0, ["test_it.py::test[a]", "test_it.py::test[b]"]),
        ({"a": 1, "b": 2}, 1, []),
        ({"a": 1, "b": 1, "c": 1}, 1, []),
    ],
    ids=["pass again", "one fails again", "too many"],
)
def test_failed_tests_are_repeated_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: dict[str, int],
    status: int,
    flaky: list[str],
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        f"""
from pathlib import Path
import pytest
@pytest.mark.parametrize("name", "abcde")
def test(name):
    with Path(name).open("a") as runs:
        runs.write(".")
    assert len(Path(name).read_text()) > {failing}.get(name, 0)
"""
    )
    monkeypatch.setattr(lanes, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(lanes, "REPEATED_MAX", 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytest_program = str(Path(sys.executable).with_name("pytest"))
    assert lanes.run("some", [pytest_program, "-q", "-p", "xdist.plugin", "-n", "2"]) == status
    assert Path("e").read_text() == "."
    listed = lanes.report().partition("flaky tests, which passed only when they were repeated:\n")[
        2
    ]
    assert listed.splitlines() == flaky
