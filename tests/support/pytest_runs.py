"""pytest runs in processes of their own, in directories outside the checkout, as users of the plugin have them."""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LOADED = any(point.name == "penstock" for point in entry_points(group="pytest11"))
"""Whether this environment was installed with the plugin's entry point; an older one has to be told of it."""


def run_pytest(directory: Path, files: Mapping[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Write the files, run pytest on them; warnings are errors there, too."""
    for name, text in {"pytest.ini": "[pytest]\nasyncio_default_fixture_loop_scope = function\n", **files}.items():
        (directory / name).write_text(text)
    plugin = () if LOADED else ("-p", "pytest_penstock.plugin")
    # kafka-python reads its schemas through functions that Python 3.11 deprecates.
    strict = ("-W", "error", "-W", "ignore:(read|open)_text is deprecated:DeprecationWarning", "-p", "no:cacheprovider")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PENSTOCK_"))}
    command = (sys.executable, "-m", "pytest", *plugin, *strict, *arguments)
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=100, check=False, env=environment | {"PYTHONPATH": str(ROOT)}
    )
