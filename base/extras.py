"""How to install the extras of Penstock, in the words of every error that asks for one."""


def install_hint(*extras: str) -> str:
    """Return what to type to install extras.

    The name `penstock` on PyPI belongs to another project, so it names a checkout.
    """
    return f'pip install ".[{",".join(extras)}]" in a checkout of Penstock'
