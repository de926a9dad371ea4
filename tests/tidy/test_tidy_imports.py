"""Check that each test module is imported by one name, starting at the root
(`tests.support.cluster`). A second name loads a second copy of its classes and constants, so
`isinstance` fails and fixtures patch the wrong copy.
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
    """Yield the line and name of each import from one of the roots. For speed, only modules with
    such a line are parsed.
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
    """Return the modules that become importable without a prefix when pytest puts the folder on the
    import path.
    """
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    return frozenset(
        found
        - {"__init__", "__main__", "__pycache__"}
        - {*packages(), "tools"}
        - set(sys.stdlib_module_names)
    )


def test_test_modules_are_imported_by_one_name() -> None:
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


def test_packages_do_not_import_tests() -> None:
    offenders = [
        f"{shown(path, line)}: {name}"
        for path in sources()
        for line, name in imports_of(path, {TESTS.name, "benchmarks"})
    ]
    assert not offenders, listed(offenders)


LINUX_ONLY = {
    "copy_file_range",
    "eventfd",
    "fdatasync",
    "memfd_create",
    "pidfd_open",
    "posix_fadvise",
    "posix_fallocate",
    "sched_getaffinity",
    "sched_setaffinity",
    "splice",
    "O_DIRECT",
    "O_PATH",
    "O_TMPFILE",
}
"""Members of `os` that macOS does not have. Source: the availability notes of the module."""


def test_members_of_os_that_macos_lacks_are_used_conditionally() -> None:
    found = []
    for path in sources():
        source = text(path)
        found += [
            f"{shown(path)} uses os.{name} on macOS, too"
            for name in LINUX_ONLY
            if re.search(rf"\bos\.{name}\b", source)
            and "sys.platform" not in source
            and f'hasattr(os, "{name}")' not in source
        ]
    assert not found, listed(found)


def test_examples_do_not_import_tests() -> None:
    """Users copy the examples, without the tests of this repository."""
    offenders = [
        f"{shown(path)}:{line}"
        for path in files()
        if path.suffix == ".py" and ROOT / "examples" in path.parents
        for line, _ in imports_of(path, ("tests",))
    ]
    assert not offenders, listed(offenders)
