"""`make image`: build the image, print its contents, and run `penstock dev` in it.

Ends with `image: OK`, or with `image: FAILED` and the reason.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.image import builder as images
from tests.image.builder import Builder, ImageFailed
from tests.image.container import Container
from tests.support.sbom import IN_THE_IMAGE, Bill, installed

_SHOWN = 12
_OPENSSL = (3, 5)
"""The lowest permitted versions: docs/design/kubernetes.md."""
_VERSIONS = "import json, platform, ssl; print(json.dumps([platform.python_version(), \
platform.freedesktop_os_release()['VERSION_CODENAME'], ssl.OPENSSL_VERSION.split()[1]]))"


@contextmanager
def step(what: str) -> Generator[None]:
    began = time.monotonic()
    say(f"{what} ...")
    yield
    say(f"  {time.monotonic() - began:.1f} s")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):8.1f} MiB"


def size_of(path: Path) -> int:
    """Return the total size of all files below the path, without links."""
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    return sum(
        Path(directory, name).lstat().st_size
        for directory, _, names in os.walk(path)
        for name in names
    )


def show_contents(builder: Builder, root: Path) -> None:
    say("layers, compressed:")
    for layer in images.layers(builder):
        say(f"  {mib(layer.size_bytes)}  {layer.made_by[:90] or 'the base'}")
    say("unpacked:")
    application = root / "opt" / "penstock"
    for path in (root / "usr", application):
        say(f"  {mib(size_of(path))}  /{path.relative_to(root)}")
    (packages,) = application.glob("lib/python*/site-packages")
    sizes = sorted(((size_of(path), path.name) for path in packages.iterdir()), reverse=True)
    say(f"largest of {len(sizes)} in {packages.relative_to(root)}:")
    for size_bytes, name in sizes[:_SHOWN]:
        say(f"  {mib(size_bytes)}  {name}")
    if any(name == "pip" for _, name in sizes):
        raise ImageFailed("the image contains pip")


def check_bill(root: Path) -> None:
    """Compare the SBOM with the installed packages, and save a copy."""
    text = (root / IN_THE_IMAGE).read_text()
    try:
        bill = Bill(text)
    except ValueError as error:
        raise ImageFailed(f"/{IN_THE_IMAGE}: {error}") from error
    (packages,) = (root / "opt" / "penstock").glob("lib/python*/site-packages")
    differing = set(bill.versions.items()) ^ set(installed(packages).items())
    if differing:
        raise ImageFailed(f"/{IN_THE_IMAGE} differs from what is installed: {sorted(differing)}")
    copy = images.WORK / IN_THE_IMAGE.name
    copy.write_text(text)
    unknown = sorted(name for name, it in bill.components.items() if not it.get("licenses"))
    say(f"bill of materials of {len(bill.versions)} packages: {copy.relative_to(images.ROOT)}")
    say(f"  without a license in their metadata: {', '.join(unknown) or 'none'}")


def check_versions(container: Container) -> None:
    """Compare the Python, Debian and OpenSSL versions with the base image name and the
    design note.
    """
    python, debian, openssl = json.loads(container.said("python", "-c", _VERSIONS))
    say(f"  Python {python}, Debian {debian}, OpenSSL {openssl}")
    found = images.Base(python.rpartition(".")[0], debian)
    if found != images.base():
        raise ImageFailed(f"the container has {found}, the Dockerfile says {images.base_name()}")
    if tuple(map(int, openssl.split(".")[:2])) < _OPENSSL:
        raise ImageFailed(f"OpenSSL {openssl} is older than the one of the design note: {_OPENSSL}")


def check_container(root: Path, builder: Builder) -> None:
    """Produce and consume a record in a cluster in the container."""
    config = images.config_of(builder)
    arguments = ("dev", "--store", "file:/var/lib/penstock/dev", "--no-console")
    with Container(root, config, *arguments) as container:
        say(f"  {container.until_logged('ready:')}")
        identity = container.said("id", "-u").strip()
        if identity != "10001":
            raise ImageFailed(f"the container runs as user {identity}, not 10001")
        refused = container.said("sh", "-c", "touch /opt/penstock/x 2>&1 || true").strip()
        if "Read-only file system" not in refused:
            raise ImageFailed(f"the root is not read-only: {refused!r}")
        check_versions(container)
        container.said("penstock", "topics", "create", "orders", "--partitions", "3")
        container.said("sh", "-c", "echo hello | penstock produce orders")
        seen = container.said(
            *("penstock", "consume", "orders", "--from-beginning", "--max-messages", "1")
        )
        if "hello" not in seen.splitlines():
            raise ImageFailed(f"the record was not read back: {seen!r}")
        say(f"  {container.said('penstock', '--version').strip()}, as user 10001, read-only root")
        code = container.stop()
    if code:
        raise ImageFailed(f"the container ended with exit code {code} after SIGTERM")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.image", description=__doc__)
    parser.add_argument("--extras", help="extras in the image (default: those of the Dockerfile)")
    extras: str | None = parser.parse_args().extras
    if os.geteuid() != 0:
        raise ImageFailed("make image needs root: buildah and runc set up mounts and namespaces")
    with step("Making a base by mmdebstrap (kept in build/image for the next time)"):
        tar = images.debian()
    with step(f"Importing it as {images.base_name()}, and running Python in it"):
        builder, refused = images.find_builder(tar)
    for line in refused:
        say(f"  refused here: {line}")
    say(f"  {builder}")
    with step(f"Building {images.DOCKERFILE.relative_to(images.ROOT)}"):
        images.build(builder, extras)
    container = builder.buildah("from", "--pull-never", images.TAG).strip()
    try:
        root = Path(builder.buildah("mount", container).strip())
        show_contents(builder, root)
        check_bill(root)
        with step("Running penstock dev in it by runc: produce, consume, SIGTERM"):
            check_container(root, builder)
    finally:
        builder.buildah("umount", container)
        builder.buildah("rm", container)


if __name__ == "__main__":
    try:
        main()
    except ImageFailed as failure:
        say(f"image: FAILED {failure}")
        sys.exit(1)
    say("image: OK")
