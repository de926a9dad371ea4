"""Package the chart with Helm, and check that it contains all files that it refers to."""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chart import CHART, KUBERNETES, ROOT, helm
from tests.tidy.markdown import anchors, links
from tests.tidy.repository import NOT_SOURCES

FOLDERS = sorted(
    path.name
    for path in ROOT.iterdir()
    if path.is_dir() and path.name not in NOT_SOURCES and not path.name.startswith(".")
)
LABELS = {"penstock/listener", "penstock/operator"}
PATH = re.compile(rf"(?<![\w./:@$%{{}}*-])((?:{'|'.join(FOLDERS)})/[\w./-]*\w)(?![\w/])")
OF_THE_SOURCES = "in the Penstock repository"
"""What a line says about a path that is not in any package of the chart."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the chart after unpacking its package."""
    directory = tmp_path_factory.mktemp("package")
    helm("package", CHART, "--destination", directory)
    (archive,) = directory.glob("penstock-*.tgz")
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return directory / "penstock"


def texts(package: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(package.rglob("*")):
        if path.is_file():
            yield path, path.read_text()


def test_links_refer_to_files_in_the_package(package: Path) -> None:
    offenders: list[str] = []
    pages = 0
    for path, text in texts(package):
        for line, target in links(text) if path.suffix == ".md" else ():
            name, _, anchor = target.partition("#")
            page = (path.parent / name).resolve() if name else path
            pages += 1
            if not page.is_relative_to(package) or not page.is_file():
                offenders.append(f"{path.relative_to(package)}:{line}: no file {target}")
            elif anchor and anchor not in anchors(page.read_text()):
                offenders.append(f"{path.relative_to(package)}:{line}: no heading {target}")
    assert pages > 10
    assert not offenders, "\n".join(offenders)


def test_paths_refer_to_files_in_the_package(package: Path) -> None:
    found = [
        (f"{path.relative_to(package)}:{number}", name, line)
        for path, text in texts(package)
        for number, line in enumerate(text.splitlines(), 1)
        for name in PATH.findall(line)
        if name not in LABELS
    ]
    assert {name for _, name, _ in found} >= {"docs/how-to/alerts.md", "docs/how-to/kubernetes.md"}
    offenders = [
        f"{where}: no file {name}"
        for where, name, line in found
        if not (package / name).exists() and OF_THE_SOURCES not in line
    ]
    assert not offenders, "\n".join(offenders)


def test_the_package_renders_the_same_objects_as_the_checkout(package: Path) -> None:
    given = (
        "--set",
        "store.bucket=records,security.allowInsecure=true",
        "-n",
        "streams",
        "--kube-version",
        KUBERNETES,
    )
    of_package, of_checkout = (
        helm("template", "penstock", chart, *given).stdout for chart in (package, CHART)
    )
    assert of_package == of_checkout
