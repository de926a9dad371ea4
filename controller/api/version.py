"""Return the version of this software, as nodes report it.

Must not fail: a checkout that was never installed reports `unknown`.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "unknown"


@cache
def product_version() -> str:
    """Return the version that `penstock --version` prints. The first call takes 2 ms."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return UNKNOWN
