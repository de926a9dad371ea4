"""The version of this software. Reading it from installation metadata would take 20 ms, and fail in
the archives that Spark uses to ship packages.
"""

from typing import Final

VERSION: Final = "0.1.0"
"""A test compares it with pyproject.toml."""
