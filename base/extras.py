"""Install hints for the extras of Penstock."""

from typing import Final

DISTRIBUTION: Final = "penstock-streams"
"""The name of the distribution on PyPI, where `penstock` is a different project."""


def install_hint(*extras: str) -> str:
    """Return the command that installs extras. It also works if Penstock was installed from a
    checkout or a file, because pip keeps the installed version.
    """
    return f'pip install "{DISTRIBUTION}[{",".join(extras)}]"'
