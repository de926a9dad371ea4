"""A module has one name: what tests share is imported from the root (`tests.support.cluster`), so
it is loaded once.

A second name for a module makes a second copy of its classes and constants: `isinstance` fails, and
a fixture changes the wrong one.
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
    """Yield what the module imports from one of the roots, with the line. Only modules in which
    that is written are parsed.
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
    """Return the modules that would be found if the folder were on the import path, as pytest puts
    it there.
    """
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    return frozenset(
        found
        - {"__init__", "__main__", "__pycache__"}
        - set(packages())
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
