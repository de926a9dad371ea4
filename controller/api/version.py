"""The version of this software, as nodes tell it of themselves.

Must not fail: a checkout that was never installed has none, which is told as such.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "unknown"


@cache
def product_version() -> str:
    """As `penstock --version` prints it. 2 ms at the first call."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return UNKNOWN
