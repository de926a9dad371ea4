"""Puts this directory on the import path (tests share what is in `support/`) and excuses deprecated calls of client libraries."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # kafka-python reads its schemas through functions that Python 3.11 deprecates and 3.13 has again.
    config.addinivalue_line("filterwarnings", r"ignore:(read|open)_text is deprecated:DeprecationWarning")
