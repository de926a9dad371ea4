"""Build the image of deploy/image/Dockerfile with buildah, on a base that mmdebstrap creates.

The Dockerfile's base comes from a registry. Where no registry is reachable, a Debian with the same
versions of Debian and Python replaces it under the same name. Storage is below build/image, so the
name does not hide a real image on this machine.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
WORK: Final = ROOT / "build" / "image"
DOCKERFILE: Final = ROOT / "deploy" / "image" / "Dockerfile"
PACKAGES: Final = ("ca-certificates", "libssl3t64", "python3-pip")
PYTHONS: Final = {"3.11": "bookworm", "3.13": "trixie"}
"""The Debian release that contains each minor version of Python."""
TAG: Final = "localhost/penstock:local-base"
STEP_TIMEOUT_S: Final = 1_200
_TAIL_CHARACTERS: Final = 4_000


class ImageFailed(Exception):
    """A step failed."""


def run(*command: str | Path, cwd: Path | None = None, timeout_s: float = STEP_TIMEOUT_S) -> str:
    """Return the output of the command. Raises ImageFailed with the end of its error output."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-_TAIL_CHARACTERS:]
        raise ImageFailed(f"{' '.join(map(str, command[:6]))}: exit code {done.returncode}\n{said}")
    return done.stdout


@dataclass(frozen=True)
class Builder:
    """Settings with which this machine can build. driver: buildah's storage driver. isolation: that
    of build steps.
    """

    driver: str
    isolation: str

    def buildah(self, *arguments: str | Path) -> str:
        storage = ("--root", WORK / self.driver, "--runroot", WORK / f"{self.driver}-run")
        return run("buildah", *storage, "--storage-driver", self.driver, *arguments)

    def __str__(self) -> str:
        return f"storage driver {self.driver}, build steps in {self.isolation}"


def base_name() -> str:
    """Return the name of the Dockerfile's base image, without the digest, because the base is
    created here.
    """
    (name,) = re.findall(r"^ARG BASE=([^@\s]+)@sha256:", DOCKERFILE.read_text(), re.MULTILINE)
    return str(name)


@dataclass(frozen=True)
class Base:
    """The versions in the name of the base. python: minor version. debian: release."""

    python: str
    debian: str


def base() -> Base:
    found = re.fullmatch(r"python:(\d+\.\d+)\.\d+-slim-([a-z]+)", base_name())
    if found is None or found[1] not in PYTHONS:
        raise ImageFailed(f"no Debian has the Python of {base_name()}: {', '.join(PYTHONS)}")
    return Base(found[1], found[2])


def debian() -> Path:
    """Return a tar of a minimal Debian with Python, which is kept for the next run.

    If Python comes from another Debian release, so do dependencies that this release lacks. apt
    takes the newest version of each package; everything else, such as OpenSSL, comes from this
    release.
    """
    wanted = base()
    tar = WORK / f"{wanted.debian}-{wanted.python}.tar"
    if not tar.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        unfinished = tar.with_suffix(".new.tar")
        python = f"python{wanted.python}"
        sources = "$1/etc/apt/sources.list"
        origin = (
            f"sed s/{wanted.debian}/{PYTHONS[wanted.python]}/ {sources} > {sources}.d/python.list"
        )
        run(
            *("mmdebstrap", "--variant=minbase", f"--setup-hook={origin}"),
            f"--include={','.join((*PACKAGES, python))}",
            f"--customize-hook=ln -s {python} $1/usr/bin/python",
            *(wanted.debian, unfinished),
        )
        unfinished.rename(tar)
    return tar


def find_builder(tar: Path) -> tuple[Builder, list[str]]:
    """Import the base and run a build step in it. Return the first settings that work, and the
    kernel's errors.
    """
    refused: list[str] = []
    for driver in ("overlay", "vfs"):
        for isolation in ("oci", "chroot"):
            builder = Builder(driver, isolation)
            try:
                _put_base(builder, tar)
                container = builder.buildah("from", "--pull-never", base_name()).strip()
                builder.buildah("run", "--isolation", isolation, container, "--", "python", "-V")
                builder.buildah("rm", container)
            except ImageFailed as error:
                refused.append(f"{builder}: {str(error).strip().splitlines()[-1]}")
            else:
                return builder, refused
    raise ImageFailed("buildah can run nothing here:\n" + "\n".join(refused))


def _put_base(builder: Builder, tar: Path) -> None:
    """Import the tar under the name of the Dockerfile's base, unless it is already imported."""
    name = f"docker.io/library/{base_name()}"
    if name in builder.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    container = builder.buildah("from", "scratch").strip()
    builder.buildah("add", "--quiet", container, tar, "/")
    builder.buildah("commit", "--quiet", container, name)
    builder.buildah("rm", container)


def build(builder: Builder, extras: str | None) -> None:
    """Run the Dockerfile. extras: overrides its default extras.

    Build steps get this machine's pip settings and certificates to reach the package index. They do
    not remain in the image.
    """
    settings = WORK / "pip.conf"
    settings.write_text(_pip_settings())
    mounts = ["--volume", f"{settings}:/etc/pip.conf:ro"]
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        mounts += ["--volume", f"{certificates}:{certificates}:ro"]
    layers = f"--layers={'true' if builder.driver == 'overlay' else 'false'}"
    builder.buildah(
        *("build", "--pull-never", "--isolation", builder.isolation, layers, *mounts),
        *("--build-arg", f"BASE={base_name()}"),
        *(("--build-arg", f"EXTRAS={extras}") if extras else ()),
        *("--file", DOCKERFILE),
        *("--ignorefile", f"{DOCKERFILE}.dockerignore", "--tag", TAG, ROOT),
    )


def _pip_settings() -> str:
    """Return this machine's pip settings for the package index."""
    wanted = {"index-url", "extra-index-url", "proxy", "trusted-host", "timeout"}
    lines = ["[global]"]
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in wanted:
            lines.append(f"{key} = {value.strip(chr(39))}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Layer:
    """A layer of the image. size_bytes: compressed, as stored by a registry."""

    size_bytes: int
    made_by: str


def layers(builder: Builder) -> list[Layer]:
    """Return the layers, starting with the base."""
    directory = WORK / "oci"
    shutil.rmtree(directory, ignore_errors=True)
    builder.buildah("push", "--quiet", TAG, f"oci:{directory}:penstock")

    def blob(digest: str) -> Any:
        return json.loads((directory / "blobs" / "sha256" / digest.partition(":")[2]).read_bytes())

    index = json.loads((directory / "index.json").read_bytes())
    manifest = blob(index["manifests"][0]["digest"])
    history = blob(manifest["config"]["digest"])["history"]
    made_by = [step.get("created_by", "") for step in history if not step.get("empty_layer")]
    found = [
        Layer(item["size"], made) for item, made in zip(manifest["layers"], made_by, strict=True)
    ]
    shutil.rmtree(directory)
    return found


def config_of(builder: Builder) -> Any:
    """Return the image config: user, environment, entry point."""
    return json.loads(builder.buildah("inspect", "--type", "image", TAG))["OCIv1"]["config"]
