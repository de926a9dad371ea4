"""Run pytest in separate processes and in directories outside of the checkout, as users of the
plugin do.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

LOADED = any(point.name == "penstock" for point in entry_points(group="pytest11"))
"""Whether the plugin's entry point is installed in this environment. An older environment needs
`-p`.
"""


_INI = """[pytest]
asyncio_default_fixture_loop_scope = function
filterwarnings =
    error
    ignore:(read|open)_text is deprecated:DeprecationWarning
"""
"""Warnings are also errors here, except that kafka-python reads its schemas through functions that
Python 3.11 deprecates.
"""


def run_pytest(
    directory: Path, files: Mapping[str, str], *arguments: str, ini: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Write the files and run pytest on them."""
    for name, text in {"pytest.ini": _INI + ini, **files}.items():
        (directory / name).write_text(text)
    plugin = () if LOADED else ("-p", "penstock.testing.plugin")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PENSTOCK_"))
    }
    command = (sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", *arguments)
    return subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
