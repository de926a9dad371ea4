"""Puts this directory on the import path (tests share what is in `support/`) and excuses deprecated calls of client libraries."""

import os
import sys
from pathlib import Path

import pytest
import structlog


def pytest_configure(config: pytest.Config) -> None:
    # kafka-python reads its schemas through functions that Python 3.11 deprecates and 3.13 has again.
    config.addinivalue_line("filterwarnings", r"ignore:(read|open)_text is deprecated:DeprecationWarning")
    # Commands run in this process in some tests, and their stdout is the answer: a cluster's log must not get into it.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    os.environ["SPARK_CONF_DIR"] = str(Path(__file__).with_name("support") / "spark")
