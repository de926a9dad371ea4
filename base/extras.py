"""Install hints for the extras of Penstock."""

from typing import Final

DISTRIBUTION: Final = "penstock-streams"
"""The name on PyPI, where `penstock` is another project."""


def install_hint(*extras: str) -> str:
    """Return the command that installs extras. It also works if Penstock was installed from a
    checkout or a file, because pip keeps what is installed.
    """
    return f'pip install "{DISTRIBUTION}[{",".join(extras)}]"'
