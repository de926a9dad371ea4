"""House rules that no linter knows: sizes, docstrings, no unfinished work, generated code marked."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("objectstore", "stream", "controller", "broker", "deploy", "penstock", "pyspark_penstock", "pytest_penstock")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
COMMITTED_BYTES_MAX = 1_000_000

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "gen" not in path.parts)
IDS = [str(path.relative_to(ROOT)) for path in SOURCES]


def test_there_are_sources_to_check() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_file_is_one_thing(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= FILE_LINES_MAX, f"{len(lines)} lines; split it by noun"


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_functions_fit_on_a_screen(path: Path) -> None:
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1})"
        for node in functions
        if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, f"longer than {FUNCTION_LINES_MAX} lines: {long}"


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module docstring says what this is and which invariant it keeps"


@pytest.mark.parametrize("path", SOURCES, ids=IDS)
def test_nothing_is_left_for_later(path: Path) -> None:
    text = path.read_text()
    words = [word for word in ("TODO", "FIXME", "XXX", "NotImplementedError") if word in text]
    assert not words, f"{words}: do it, or open an issue"


def test_no_module_is_a_drawer() -> None:
    drawers = [name for name, path in zip(IDS, SOURCES, strict=True) if path.stem in {"utils", "util", "helpers", "common", "misc"}]
    assert not drawers


def test_generated_code_says_so() -> None:
    for path in sorted((ROOT / "broker" / "wire" / "gen").glob("*.py")):
        assert "generated" in path.read_text()[:400].lower(), path


def test_every_package_is_typed_for_its_users() -> None:
    assert all((ROOT / package / "py.typed").exists() for package in PACKAGES)
