"""Check the layout of the packages, what the wheel contains, and the pinned versions."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from penstock.base.installation import CONTENTS
from penstock.deploy.cli.app import app
from tests.tidy.repository import ROOT, files, listed, packages, project, shown, sources, tree

NOT_IN_THE_WHEEL = {"benchmarks", "tools"}
"""Packages of the repository that users do not need."""


TOP_LEVEL = {"penstock", "pyspark_penstock"}
"""Spark finds data sources by the prefix `pyspark_`."""


ENTRY_POINTS = {
    "penstock.__main__",
    "penstock.deploy.node.kubernetes_zone",
    "penstock.spark",
    "pyspark_penstock.pytest_plugin",
}
"""Modules that are imported by Python, the chart, users and pytest."""
COMMANDS = {
    f"penstock.deploy.cli.{name.replace('-', '_')}"
    for name in cast("Any", typer.main.get_command(app)).list_commands(None)
}
"""Modules that `deploy.cli.lazy` imports by the name of their command."""


def test_the_wheel_installs_two_top_level_names() -> None:
    assert set(project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == TOP_LEVEL


def test_the_wheel_contains_every_package_with_type_hints() -> None:
    in_the_tree = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NOT_IN_THE_WHEEL
    assert set(packages()) == in_the_tree
    assert [name for name in packages() if not (ROOT / name / "py.typed").exists()] == []


def names_in(path: Path) -> Iterator[str]:
    """Yield the modules that this one imports or mentions in a string, as for `python -m`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


def test_every_module_of_the_wheel_is_used_in_it() -> None:
    """Generators of docs or code, which only developers run, belong in `tools/`."""
    users: dict[str, set[Path]] = {}
    for path in sources():
        for name in names_in(path):
            users.setdefault(name, set()).add(path)
    offenders = []
    for path in sources():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = name if path.parts[len(ROOT.parts)] in TOP_LEVEL else f"penstock.{name}"
        is_used = bool(users.get(module, set()) - {path})
        if path.name != "__init__.py" and not is_used and module not in ENTRY_POINTS | COMMANDS:
            offenders.append(f"{shown(path)}: no other module of the wheel imports or names it")
    assert not offenders, listed(offenders)


def test_files_of_other_projects_in_the_package_are_recognized() -> None:
    modules = {path.name for path in (ROOT / "penstock").iterdir() if path.suffix in {"", ".py"}}
    assert modules | {"__pycache__"} == CONTENTS


@pytest.mark.parametrize("name", sorted(set(packages()) - TOP_LEVEL))
def test_linked_packages_are_imported_by_one_name(name: str) -> None:
    """Under a second name, its modules, classes and constants would exist twice."""
    assert (ROOT / "penstock" / name).readlink() == Path("..", name)
    with pytest.raises(ImportError, match=f"import penstock.{name}"):
        importlib.import_module(name)


def test_constraints_contain_only_exact_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    offenders = [
        line
        for line in lines
        if not line.startswith("#") and (line.count("==") != 1 or "/" in line)
    ]
    assert not offenders, listed(offenders)


def test_every_constraint_has_hashes() -> None:
    """`make venv` and the image build verify hashes; another artifact of the same version is
    rejected.
    """
    text = (ROOT / "constraints-hashes.txt").read_text().replace("\\\n", "")
    hashed = {words[0]: words[1:] for line in text.splitlines()[1:] if (words := line.split())}
    assert set(hashed) == set((ROOT / "constraints.txt").read_text().splitlines()[1:])
    offenders = [
        version
        for version, hashes in hashed.items()
        if not hashes or not all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)
    ]
    assert not offenders, listed(offenders)


@pytest.mark.costly("solves all dependencies of all extras")
def test_pinned_versions_install_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2, so a version that requires 3.11.5 breaks `make demo` there."""
    oldest = project()["project"]["requires-python"].removeprefix(">=")
    uv = Path(sys.executable).parent / "uv"
    command = [uv, "pip", "compile", "--quiet", "--python-version", f"{oldest}.0"]
    command += ["--constraint", "constraints.txt", "--extra", "dev", "pyproject.toml"]
    solved = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300
    )
    assert solved.returncode == 0, solved.stderr


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "tools").glob("*.sh")), ROOT / "Makefile"],
    ids=lambda path: path.name,
)
def test_scripts_install_pinned_versions(path: Path) -> None:
    moving = re.findall(r"\S+@(?:latest|main|master|HEAD|upgrade)\b", path.read_text())
    assert moving == [], "a newer version would be installed without a review"


def test_pinned_packages_have_no_download_urls() -> None:
    """A machine may use its own package index, and a URL may disappear."""
    hosts = (
        "repo1.maven.org|repo.maven.apache.org|files.pythonhosted.org|pypi.org/simple"
        "|registry.npmjs.org|proxy.golang.org|static.crates.io|deb.debian.org"
    )
    address = re.compile(rf"https?://(?:{hosts.replace('.', '[.]')})")
    names = re.compile(r"Dockerfile|Makefile|.*\.(?:py|sh|toml|txt|yaml|yml|json|cfg|md)")
    offenders = [
        shown(path)
        for path in files()
        if names.fullmatch(path.name) and address.search(path.read_text(errors="replace"))
    ]
    assert not offenders, listed(offenders)
