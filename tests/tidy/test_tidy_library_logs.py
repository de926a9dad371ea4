"""Check that modules that programs import as a library log through `base.log`.

structlog with its defaults would print to the stdout of the program.
"""

import subprocess
import sys
from pathlib import Path

_LOADED = """
import sys
import lake.arrow.topic_scan, lake.arrow.cluster, lake.arrow.read
import lake.spark.source, lake.spark.tasks
import lake.table.sync, lake.spark.sink.writers, lake.spark.sink.transaction, lake.rewrite.run
ours = {"base", "objectstore", "stream", "lake"}
for name, module in sys.modules.items():
    if name.split(".")[0] in ours and module.__file__:
        print(module.__file__)
"""
_CALLS = ("structlog.get_logger(", "from structlog import")


def test_modules_of_readers_log_through_base_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], capture_output=True, text=True, timeout=60, check=True
    )
    files = [Path(name) for name in done.stdout.split()]
    assert any(file.name == "topic_scan.py" for file in files)
    wrong = [str(file) for file in files if any(call in file.read_text() for call in _CALLS)]
    assert wrong == [], "use `from base.log import get_logger`"
