"""Local clusters cache bytecode in a user directory if, and only if, Python would otherwise compile
everything at each start.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.deploy.local import bytecode

ROOT = Path(__file__).resolve().parents[3]
FORBIDDEN = {"PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a module of an installation without bytecode."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = tmp_path / "package"
    package.mkdir()
    (package / "module.py").write_text("x = 1\n")
    return package / "module.py"


def compiled_of(source: Path) -> Path:
    return source.parent / "__pycache__" / f"module.{sys.implementation.cache_tag}.pyc"


def test_bytecode_is_cached_in_a_user_directory_if_python_would_not_keep_it(
    source: Path, tmp_path: Path
) -> None:
    environment = bytecode.environment(
        os.environ | FORBIDDEN | {"PYTHONPATH": str(source.parent)}, str(source)
    )
    subprocess.run([sys.executable, "-c", "import module"], env=environment, check=True)
    assert [path.name for path in (tmp_path / "cache").rglob("module.*")] == [
        compiled_of(source).name
    ]
    assert not compiled_of(source).exists()
    assert (tmp_path / "cache" / "penstock" / "bytecode").stat().st_mode & 0o077 == 0


def test_the_current_process_uses_the_cache(source: Path, tmp_path: Path) -> None:
    code = (
        "from penstock.deploy.local import bytecode"
        f"; bytecode.keep_bytecode({str(source)!r}); import module"
    )
    environment = os.environ | FORBIDDEN | {"PYTHONPATH": f"{ROOT}{os.pathsep}{source.parent}"}
    environment.pop("PYTHONPYCACHEPREFIX", None)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert [path.name for path in (tmp_path / "cache").rglob("module.*")] == [
        compiled_of(source).name
    ]
    assert not compiled_of(source).exists()


def test_no_cache_is_used_if_it_is_not_needed(source: Path, tmp_path: Path) -> None:
    chosen = FORBIDDEN | {"PYTHONPYCACHEPREFIX": "/elsewhere"}
    assert bytecode.environment({}, str(source)) == {}
    assert bytecode.environment(chosen, str(source)) == chosen
    compiled_of(source).parent.mkdir()
    compiled_of(source).touch()
    assert bytecode.environment(FORBIDDEN, str(source)) == FORBIDDEN
    assert not (tmp_path / "cache").exists()


def test_a_directory_writable_by_others_is_not_used(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cache" / "penstock" / "bytecode"
    place.mkdir(parents=True)
    place.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    (tmp_path / "none").write_text("a file, where a directory would have to be")
    assert bytecode.environment(FORBIDDEN, str(source)) == FORBIDDEN
