"""Check that modules used as a library log through `base.log`, and that brokers have a logger for
each package that logs. structlog's default configuration would print to the program's stdout.
"""

import re
import subprocess
import sys
from pathlib import Path

from penstock.broker.handlers.configs.loggers import LOGGERS
from tests.tidy.repository import ROOT, sources

_LOADED = """
import sys
import penstock.lake.arrow.topic_scan, penstock.lake.arrow.cluster, penstock.lake.arrow.read
import penstock.lake.spark.source, penstock.lake.spark.tasks
import penstock.lake.table.sync, penstock.lake.rewrite.run
import penstock.lake.spark.sink.writers, penstock.lake.spark.sink.transaction
ours = {f"penstock.{name}" for name in ("base", "protocol", "objectstore", "stream", "lake")}
for name, module in sys.modules.items():
    if ".".join(name.split(".")[:2]) in ours and module.__file__:
        print(module.__file__)
"""
_CALLS = ("structlog.get_logger(", "from structlog import")


def test_reader_modules_log_through_base_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], capture_output=True, text=True, timeout=60, check=True
    )
    files = [Path(name) for name in done.stdout.split()]
    assert any(file.name == "topic_scan.py" for file in files)
    wrong = [str(file) for file in files if any(call in file.read_text() for call in _CALLS)]
    assert wrong == [], "use `from penstock.base.log import get_logger`"


_GIVEN_NAME = re.compile(r"get_logger\(([^)]*)\)$", re.MULTILINE)
_OF_BROKERS = {"broker", "objectstore", "stream"}
"""Folders in which each package has its own logger, besides the logger of the folder."""


def test_every_package_that_logs_has_a_logger() -> None:
    packages: set[str] = set()
    for path in sources():
        names = _GIVEN_NAME.findall(path.read_text())
        assert set(names) <= {"__name__", "AUDIT"}, f"{path}: use `get_logger(__name__)`"
        if "__name__" in names:
            *folders, _ = path.relative_to(ROOT).parts
            inner = folders[1:] if folders[0] == "penstock" else folders
            packages.add(".".join(["penstock", *inner[: 2 if inner[0] in _OF_BROKERS else 1]]))
    missing = packages - {*LOGGERS, "penstock.lake", "penstock.testing"}
    assert missing == set(), "add them to LOGGERS of penstock.broker.handlers.configs.loggers"
    assert set(LOGGERS) - packages <= {"root"}
