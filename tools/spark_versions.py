"""Run the tests of the Spark source and sink with several versions of Spark, and print a table.

python -m tools.spark_versions PYTHON... [-- PYTEST_ARGUMENT...] Each PYTHON is an interpreter with
one version of PySpark. All interpreters run, even if one fails.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

TESTS = ("-q", "-W", "ignore", "-p", "no:cacheprovider", "--timeout", "600", "-m", "not long")
VERSION = "from importlib.metadata import version; print(version('pyspark'))"
ROW = "{:>8} {:>8} {:>8} {:>8} {:>8}"


def run(python: str, arguments: list[str]) -> tuple[bool, str]:
    """Run the tests with an interpreter. Return whether they passed, and a table row."""
    command = (python, "-c", VERSION)
    asked = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - given by make
    version = asked.stdout.strip()
    sys.stdout.write(f"Spark {version}\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        tests = (python, "-m", "pytest", *TESTS, f"--junitxml={report}", "tests/spark", *arguments)
        code = subprocess.run(tests, check=False).returncode  # noqa: S603 - given by make
        suite = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None  # noqa: S314 - written by pytest
    if suite is None:
        return False, ROW.format(version, "-", "-", "-", "-")
    total, failures, errors, skipped = (
        int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    seconds = f"{float(suite.get('time', '0')):.0f} s"
    return not code, ROW.format(version, total - failed - skipped, failed, skipped, seconds)


def main() -> int:
    given = [*sys.argv[1:], "--"]
    end = given.index("--")
    results = [run(python, given[end + 1 : -1]) for python in given[:end]]
    rows = [
        ROW.format("Spark", "passed", "failed", "skipped", "time"),
        *(row for _, row in results),
    ]
    sys.stdout.write("\n".join(rows) + "\n")
    return 0 if all(passed for passed, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
