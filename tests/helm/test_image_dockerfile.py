"""Check the Dockerfile without a container engine: lint it, and run its steps in an empty directory
with a new virtual environment.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import yaml

from tests.support.waiting import PATIENCE_S
from tests.tidy.repository import packages

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "image" / "Dockerfile"
PINNED = re.compile(r"[a-z0-9./-]+:[0-9]+\.[0-9]+\.[0-9]+[a-z0-9.-]*@sha256:[0-9a-f]{64}\Z")


@dataclass
class Stage:
    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        return next(rest for found, rest in reversed(self.steps) if found == instruction)


def stages() -> list[Stage]:
    found: list[Stage] = []
    lines = [
        line
        for line in DOCKERFILE.read_text().replace("\\\n", " ").splitlines()
        if line and not line.startswith("#")
    ]
    default = ""
    for line in lines:
        instruction, _, rest = line.partition(" ")
        if instruction == "ARG" and not found:
            default = rest.removeprefix("BASE=")
        elif instruction == "FROM":
            base, _, name = rest.replace("${BASE}", default).partition(" AS ")
            found.append(Stage(base, name))
        else:
            found[-1].steps.append((instruction, rest.strip()))
    return found


def test_the_dockerfile_passes_the_linter() -> None:
    *building, final = stages()
    names = {stage.name for stage in building}
    for stage in (*building, final):
        assert stage.base in names or PINNED.match(stage.base), f"{stage.base} is not pinned"
        for instruction, rest in stage.steps:
            assert instruction in {
                "ARG",
                "RUN",
                "COPY",
                "ENV",
                "WORKDIR",
                "USER",
                "EXPOSE",
                "ENTRYPOINT",
                "CMD",
                "LABEL",
            }, instruction
            assert not re.search(r"\b(apt-get|curl|wget|sudo)\b", rest), (
                f"{rest}: the base image already has what is needed"
            )
            if instruction == "WORKDIR":
                assert rest.startswith("/")
    assert "-slim" in final.base
    assert "RUN" not in {instruction for instruction, _ in final.steps}, (
        "only stages that build may run steps"
    )
    user, group = final.last("USER").split(":")
    assert int(user) >= 10_000
    assert int(group) >= 10_000, "must be a number, because Kubernetes cannot look up a name"
    assert final.last("ENTRYPOINT") == '["penstock"]'


def test_the_chart_runs_as_the_images_user() -> None:
    values = yaml.safe_load((ROOT / "helm" / "penstock" / "values.yaml").read_text())
    user = int(stages()[-1].last("USER").split(":")[0])
    context = values["podSecurityContext"]
    assert {context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {user}


def sources(rest: str) -> tuple[list[str], str]:
    *found, target = [word for word in shlex.split(rest) if not word.startswith("--")]
    return found, target


def test_copied_files_exist_and_are_not_ignored() -> None:
    patterns = Path(f"{DOCKERFILE}.dockerignore").read_text().split()
    for instruction, rest in stages()[0].steps:
        if instruction == "COPY":
            for source in sources(rest)[0]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in patterns, f"{source} is ignored"
    copied = {
        source
        for instruction, rest in stages()[0].steps
        if instruction == "COPY"
        for source in sources(rest)[0]
    }
    assert set(packages()) <= copied


class Builder:
    """Runs the steps of a stage with a directory in place of the root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root
        tools = root / "tools"
        tools.mkdir()
        # Through a symbolic link, Python would not find its environment, and only this environment
        # is certain to contain pip.
        python = tools / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        self.environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(root), **_network()}

    def here(self, text: str) -> str:
        return re.sub(
            r"(?<![\w.:/])/(opt|src|var)\b", lambda found: f"{self.root}/{found[1]}", text
        )

    def run(self, stage: Stage) -> None:
        for instruction, rest in stage.steps:
            if instruction == "WORKDIR":
                self.directory = Path(self.here(rest))
                self.directory.mkdir(parents=True, exist_ok=True)
            elif instruction == "ARG":
                name, _, default = rest.partition("=")
                self.environment[name] = default
            elif instruction == "COPY" and "--from" not in rest:
                self._copy(rest)
            elif instruction == "RUN":
                done = subprocess.run(
                    ["sh", "-c", self.here(rest)],
                    cwd=self.directory,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{rest}\n{done.stdout}{done.stderr}"

    def _copy(self, rest: str) -> None:
        found, target = sources(rest)
        for source in found:
            if (ROOT / source).is_dir():
                place = self.directory / target  # like Docker, which copies links as links
                shutil.copytree(ROOT / source, place, ignore=_ignored, symlinks=True)
            else:
                shutil.copy(ROOT / source, self.directory / target)


def _ignored(_directory: str, names: list[str]) -> list[str]:
    return [name for name in names if fnmatch(name, "__pycache__")]


def _network() -> dict[str, str]:
    """Return the variables by which this machine accesses a package index."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith("_proxy") or name.startswith(("PIP_", "SSL_"))
    }


def test_the_build_steps_result_in_a_working_installation(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    build, final = stages()[0], stages()[-1]
    builder.run(build)
    bin_directory = Path(builder.here(final.last("ENV").partition("PATH=")[2].partition(":")[0]))
    penstock = bin_directory / "penstock"
    clean = {"PATH": f"{bin_directory}:/usr/bin:/bin", "HOME": str(tmp_path / "home")}

    def said(*arguments: str) -> str:
        done = subprocess.run(
            arguments,
            cwd="/",
            env=clean,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shutil.rmtree(tmp_path / "src")  # the installed command must not need the sources
    assert said(str(penstock), "--version").startswith("penstock ")
    assert "--advertised-listeners" in said(str(penstock), "broker", "--help")
    assert "--controller-quorum-voters" in said(str(penstock), "controller", "--help")
    installed = (
        "import importlib.util as u; print([name for name in ('moto', 'opentelemetry', 'pyarrow',"
        " 'pyspark') if u.find_spec(name)])"
    )
    assert said(str(bin_directory / "python"), "-c", installed) == "['opentelemetry']\n", (
        "the image must have the extras of the Dockerfile only"
    )
    assert not list((tmp_path / "opt").rglob("pip/__init__.py")), "the image must not contain pip"
