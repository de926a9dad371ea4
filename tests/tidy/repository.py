"""Read the repository for the tidy tests: its files, its packages, and the syntax tree of each
module.
"""

import ast
import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCES = {"__pycache__", "bucket", "build", "dist", "site", "node_modules"}


@cache
def project() -> dict[str, Any]:
    """Return the content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def packages() -> tuple[str, ...]:
    """Return the top-level directories of the repository that the wheel contains: its packages,
    and the targets of the links in `penstock/`.
    """
    top_level = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    links = sorted(path.name for path in (ROOT / "penstock").iterdir() if path.is_symlink())
    return (*top_level, *links)


def without_link(name: str) -> str:
    """Return the path (`stream/config.py`) or module (`stream.config`) without the link
    (`penstock/stream/…`, `penstock.stream.config`).
    """
    rest = name[len("penstock") + 1 :]
    is_link = name.startswith("penstock") and re.split(r"[./]", rest)[0] in packages()
    return rest if is_link else name


@cache
def files() -> tuple[Path, ...]:
    """Return all files below the root, without caches, environments, build results and the buckets
    of conformance vectors.
    """
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name for name in folders if name not in NOT_SOURCES and not name.startswith(".")
        ]
        found += [Path(folder, name) for name in names]
    return tuple(sorted(found))


@cache
def sources() -> tuple[Path, ...]:
    """Return the modules of the packages, without generated code."""
    requested = set(packages())
    return tuple(
        path
        for path in files()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] in requested
        and "gen" not in path.parts
    )


@cache
def text(path: Path) -> str:
    """Return the file's text."""
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    """Return the module's syntax tree."""
    return ast.parse(text(path))


def shown(path: Path, line: int | None = None) -> str:
    """Return `path:line` relative to the root, in the form that editors can open."""
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def listed(offenders: list[str]) -> str:
    """Return the failure message: the number of offenders, and one line for each."""
    return f"{len(offenders)} found:\n" + "\n".join(offenders)
