"""Check the layout of the packages, what the wheel contains, and the pinned versions."""

import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.repository import ROOT, listed, packages, project

NOT_IN_THE_WHEEL = {"benchmarks"}
"""Packages of the repository that users do not need."""


TOP_LEVEL = {"penstock", "pyspark_penstock"}
"""Spark finds data sources by the prefix `pyspark_`."""


def test_the_wheel_adds_two_names_to_an_environment() -> None:
    assert set(project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == TOP_LEVEL
    owners = importlib.metadata.packages_distributions()
    foreign = {name: set(owners.get(name, [])) - {"penstock"} for name in TOP_LEVEL}
    assert foreign == {name: set() for name in TOP_LEVEL}


def test_every_package_is_in_the_wheel_with_its_types() -> None:
    in_the_tree = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NOT_IN_THE_WHEEL
    assert set(packages()) == in_the_tree
    assert [name for name in packages() if not (ROOT / name / "py.typed").exists()] == []


@pytest.mark.parametrize("name", sorted(set(packages()) - TOP_LEVEL))
def test_a_linked_package_has_one_name(name: str) -> None:
    """Under a second name its modules, classes and constants would exist twice."""
    assert (ROOT / "penstock" / name).readlink() == Path("..", name)
    with pytest.raises(ImportError, match=f"import penstock.{name}"):
        importlib.import_module(name)


def test_constraints_name_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    offenders = [
        line
        for line in lines
        if not line.startswith("#") and (line.count("==") != 1 or "/" in line)
    ]
    assert not offenders, listed(offenders)


def test_the_versions_install_on_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2; a version that needs 3.11.5 stops `make demo` there."""
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
    [*sorted((ROOT / "deploy").glob("*.sh")), ROOT / "Makefile"],
    ids=lambda path: path.name,
)
def test_scripts_install_fixed_versions(path: Path) -> None:
    moving = re.findall(r"\S+@(?:latest|main|master|HEAD|upgrade)\b", path.read_text())
    assert moving == [], "a newer version would be installed without a review"
