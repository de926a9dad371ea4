"""How to install the extras of Penstock, for every error that asks for one."""

from typing import Final

DISTRIBUTION: Final = "penstock-streams"
"""The name on PyPI, where `penstock` is another project."""


def install_hint(*extras: str) -> str:
    """Return what to type to install extras. It also works where Penstock was installed from a
    checkout or a file, because pip keeps what is installed.
    """
    return f'pip install "{DISTRIBUTION}[{",".join(extras)}]"'
