"""Create a bill of materials of this environment with the Dockerfile step that creates that of the
image.
"""

import shlex
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests.helm.test_image_dockerfile import ROOT, stages
from tests.support.sbom import IN_THE_IMAGE, Bill, installed

BIN = Path(sys.executable).parent


def test_the_bill_of_materials_lists_installed_packages(tmp_path: Path) -> None:
    (step,) = (
        rest
        for stage in stages()
        if stage.name == "sbom"
        for instruction, rest in stage.steps
        if instruction == "RUN"
    )
    program, *arguments, python = shlex.split(step.rpartition("&&")[2])
    assert python == "/opt/penstock/bin/python"
    made = arguments[arguments.index("--output-file") + 1]
    file = tmp_path / "sbom.json"
    command = [str(file) if word == made else word for word in arguments]
    validated_below = "--no-validate"  # this takes long for so many packages
    subprocess.run(
        [BIN / Path(program).name, *command, validated_below, sys.executable], cwd=ROOT, check=True
    )
    bill = Bill(file.read_text())

    assert (bill.product["name"], bill.product["type"]) == ("penstock-streams", "application")
    packages = installed(Path(sysconfig.get_path("purelib")))
    assert len(packages) > 100
    assert bill.versions == packages
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert bill.versions["penstock-streams"] == project["version"]
    assert {"aiohttp", "obstore", "uvloop"} <= bill.needs("penstock-streams")
    aiohttp = bill.components["aiohttp"]
    assert aiohttp["purl"] == f"pkg:pypi/aiohttp@{aiohttp['version']}"
    assert aiohttp["licenses"]
    with pytest.raises(ValueError, match="type"):
        Bill(file.read_text().replace('"type": "library"', '"type": "book"'))
    copied = shlex.split(
        next(rest for name, rest in stages()[-1].steps if name == "COPY" and "sbom" in rest)
    )
    assert copied == ["--from=sbom", made, f"/{IN_THE_IMAGE}"]
