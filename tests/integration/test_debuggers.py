"""In a checkout, debuggers and coverage use the paths of the edited files, not those of the links
in `penstock/`.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S
from tests.tidy.repository import ROOT, packages

MODULES = [
    "base/extras.py",
    "broker/quotas/rates.py",
    "controller/metadata/internal_topics.py",
    "deploy/errors.py",
    "lake/fetch/errors.py",
    "objectstore/errors.py",
    "protocol/batch/errors.py",
    "stream/wal/slots.py",
]


def test_every_linked_package_is_covered() -> None:
    links = {path.name for path in (ROOT / "penstock").iterdir() if path.is_symlink()}
    assert {module.partition("/")[0] for module in MODULES} == links <= set(packages())


@pytest.mark.parametrize("module", MODULES)
def test_breakpoint_in_an_edited_file_is_hit(module: str, tmp_path: Path) -> None:
    """Coverage compares the same file names."""
    first = ast.parse((ROOT / module).read_text()).body[1]
    script = tmp_path / "script.py"
    script.write_text(f"import penstock.{module.removesuffix('.py').replace('/', '.')}\n")
    shown = subprocess.run(
        [sys.executable, "-m", "pdb", script],
        input=f"break {module}:{first.lineno}\ncontinue\nquit\n",
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout
    assert f"> {ROOT}/{module}({first.lineno})<module>()" in shown
