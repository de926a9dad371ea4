"""Without Java, the interop tests are skipped with a reason; in CI they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
NEED_JAVA = ("test_interop_racks.py", "test_interop_schema_registry.py")


def _run_without_java(ci: str) -> "subprocess.CompletedProcess[str]":
    """Run one test of each fixture that requires Java, in a process that finds no programs."""
    files = [str(Path(__file__).with_name(name)) for name in NEED_JAVA]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "PATH": "", "CI": ci},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("ci", "exit_code", "said"),
    [("", 0, " skipped in "), ("true", 1, "CI does not skip tests: there is no JDK 17 with Maven")],
)
def test_without_java_tests_skip_and_ci_fails(ci: str, exit_code: int, said: str) -> None:
    done = _run_without_java(ci)
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert said in done.stdout
    assert "run `make jdk`" in done.stdout
