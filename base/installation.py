"""Detect files of another project in the package: `penstock` on PyPI has the same import name, so
pip installs both into one folder, where the later one replaces `__init__.py`.
"""

import os
import sys
from typing import Final

from penstock.base.extras import DISTRIBUTION

CONTENTS: Final = frozenset(
    {
        "__init__.py",
        "__main__.py",
        "__pycache__",
        "base",
        "broker",
        "controller",
        "deploy",
        "lake",
        "local_cluster.py",
        "objectstore",
        "protocol",
        "spark.py",
        "stream",
        "testing",
        "topic_list.py",
    }
)
"""The modules and packages directly in `penstock`. A test compares them with the source tree."""


class ForeignFiles(ImportError):
    """Another project has installed files in the package `penstock` or replaced some of its
    files.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. The package penstock on PyPI is another project, and one environment cannot"
            f" have both. Type: pip uninstall -y penstock {DISTRIBUTION} && pip install"
            f" {DISTRIBUTION}",
            name="penstock",
        )


def check_folder(folder: str) -> None:
    """Raise ForeignFiles if the folder of the package contains modules of another project. This
    takes 10 µs.
    """
    try:
        names = os.listdir(folder)
    except OSError:  # in a zip
        return
    modules = {name for name in names if name.endswith(".py") or "." not in name}
    if foreign := sorted(modules - CONTENTS):
        raise ForeignFiles(f"{folder} contains files of another project: {', '.join(foreign)}")


def check_package() -> None:
    """Raise ForeignFiles if `penstock/__init__.py` is missing or belongs to another project."""
    package = sys.modules["penstock"]
    if "topics" not in getattr(package, "__all__", ()):
        found = getattr(package, "__file__", None)
        raise ForeignFiles(
            f"{found} belongs to another project" if found else "penstock/__init__.py is missing"
        )
