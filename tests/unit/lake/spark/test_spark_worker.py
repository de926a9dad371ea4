"""The garbage collection of a PySpark worker after every task traverses only new objects, not all
imports.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
CODE = """
import gc, weakref
from penstock.lake.spark.tasks import freeze_modules
freeze_modules()
first = gc.get_freeze_count()
import pandas
freeze_modules()
with_pandas = gc.get_freeze_count()
assert with_pandas > first + 10_000, (first, with_pandas)

class Node: pass
node = Node()
node.itself, gone = node, weakref.ref(node)
freeze_modules()
assert gc.get_freeze_count() <= with_pandas, "nothing was imported, so nothing more is kept"
del node
gc.collect()
assert gone() is None, "garbage of later tasks is collected"
left = len(gc.get_objects())
assert left < with_pandas // 10, (left, with_pandas)
print("kept")
"""


def test_imports_are_frozen_and_garbage_is_collected() -> None:
    """Runs in its own process, because frozen objects stay frozen."""
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "kept\n", done.stderr
