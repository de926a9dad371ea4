"""Flat package names can be shadowed by a dependency: prove that each is ours, and that the wheel would carry all of them."""

import importlib
import importlib.metadata
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("objectstore", "stream", "controller", "broker", "deploy", "penstock", "pyspark_penstock", "pytest_penstock")


@pytest.mark.parametrize("name", PACKAGES)
def test_package_is_ours(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == ROOT / name / "__init__.py"


@pytest.mark.parametrize("name", PACKAGES)
def test_no_installed_distribution_owns_the_name(name: str) -> None:
    owners = set(importlib.metadata.packages_distributions().get(name, []))
    assert owners <= {"penstock"}, f"{name} also belongs to {owners}"


def test_the_wheel_lists_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert sorted(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == sorted(PACKAGES)


def test_constraints_name_versions_only() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or (line.count("==") == 1 and "/" not in line), line
