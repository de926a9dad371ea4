"""Check that no dependency shadows one of the flat package names, and that the wheel has all
packages, with types.
"""

import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.tidy.repository import ROOT, listed, packages

NOT_IN_THE_WHEEL = {"benchmarks"}
"""Packages of the repository that users do not need."""


def test_package_names_belong_to_this_repository_alone() -> None:
    owners = importlib.metadata.packages_distributions()
    offenders = []
    for name in packages():
        file = importlib.import_module(name).__file__
        if file is None or Path(file).resolve() != ROOT / name / "__init__.py":
            offenders.append(f"{name} is imported from {file}")
        if foreign := set(owners.get(name, [])) - {"penstock"}:
            offenders.append(f"{name} also belongs to {', '.join(sorted(foreign))}")
    assert not offenders, listed(offenders)


def test_the_wheel_has_every_package_with_its_types() -> None:
    in_the_tree = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NOT_IN_THE_WHEEL
    offenders = [
        f"{name} is a package, and not in the wheel" for name in in_the_tree - set(packages())
    ]
    offenders += [
        f"{name} is in the wheel, and no package" for name in set(packages()) - in_the_tree
    ]
    offenders += [
        f"{name} has no py.typed" for name in packages() if not (ROOT / name / "py.typed").exists()
    ]
    assert not offenders, listed(sorted(offenders))


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    uv = Path(sys.executable).parent / "uv"
    command = [uv, "pip", "compile", "--quiet", "--python-version", f"{oldest}.0"]
    command += ["--constraint", "constraints.txt", "--extra", "dev", "pyproject.toml"]
    solved = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300
    )
    assert solved.returncode == 0, solved.stderr
