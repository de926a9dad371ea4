"""Limit the memory of a process that runs statements.

DuckDB tracks the memory of its operators, but a single function call may allocate gigabytes more,
so the kernel enforces the limit, except on macOS.
"""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.lake.sql.errors import SqlError

EXTRA_BYTES: Final = 512 << 20
"""Memory in addition to DuckDB's limit, for Python and for the blocks of topics that are being
read.
"""
_MEMORY: Final = Path("/proc/self/statm")
_DATA_FIELD: Final = 5


def limit_memory(duckdb_bytes: int) -> None:
    """Limit later allocations of this process. duckdb_bytes: the limit of DuckDB."""
    with suppress(ValueError, OSError):
        pages = int(_MEMORY.read_text().split()[_DATA_FIELD])
        limit = pages * resource.getpagesize() + duckdb_bytes + EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def out_of_memory() -> SqlError:
    return SqlError("the statement needs more memory; raise memory_limit")
