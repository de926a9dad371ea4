"""The version of this software. Reading it from the metadata of the installation would take 20 ms,
and fail in archives, by which Spark ships packages.
"""

from typing import Final

VERSION: Final = "0.1.0"
"""A test compares it with pyproject.toml."""
