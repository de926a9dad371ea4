"""Check that each module of the tests is imported by one name, which begins at the root
(`tests.support.cluster`).

A second name for a module loads a second copy of its classes and constants: `isinstance` fails, and
a fixture changes the wrong copy.
"""

import ast
import re
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from tests.tidy.repository import ROOT, files, listed, packages, shown, sources, text, tree

TESTS = ROOT / "tests"


def imports_of(path: Path, roots: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each import from one of the roots. Only modules with such a line
    are parsed, which is faster.
    """
    if not re.search(
        rf"^\s*(?:from|import) (?:{'|'.join(map(re.escape, roots))})\b", text(path), re.MULTILINE
    ):
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (
                (node.lineno, alias.name)
                for alias in node.names
                if alias.name.split(".")[0] in roots
            )
        elif (
            isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in roots
        ):
            yield node.lineno, node.module


@cache
def short_names(folder: Path) -> frozenset[str]:
    """Return the modules that Python would find if the folder were on the import path, where pytest
    can put it.
    """
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    return frozenset(
        found
        - {"__init__", "__main__", "__pycache__"}
        - {*packages(), "tools"}
        - set(sys.stdlib_module_names)
    )


def test_modules_of_tests_have_one_name() -> None:
    offenders = []
    for path in files():
        if path.suffix == ".py":
            folders = (path.parent, TESTS) if TESTS in path.parents else (TESTS,)
            for folder in folders:
                before = ".".join(folder.relative_to(ROOT).parts)
                offenders += [
                    f"{shown(path, line)}: import {name} as {before}.{name}"
                    for line, name in imports_of(path, short_names(folder))
                ]
    assert not offenders, listed(offenders)


def test_packages_import_no_tests() -> None:
    offenders = [
        f"{shown(path, line)}: {name}"
        for path in sources()
        for line, name in imports_of(path, {TESTS.name, "benchmarks"})
    ]
    assert not offenders, listed(offenders)
