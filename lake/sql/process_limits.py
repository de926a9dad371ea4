"""Limit the memory of a process that runs statements.

DuckDB counts what it allocates for its operators, but one call of a function may allocate gigabytes
beside that, so the kernel enforces the limit. macOS does not.
"""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.lake.sql.errors import SqlError

EXTRA_BYTES: Final = 512 << 20
"""Above the limit of DuckDB, for Python and the blocks of topics that it reads."""
_MEMORY: Final = Path("/proc/self/statm")
_DATA_FIELD: Final = 5


def limit_memory(duckdb_bytes: int) -> None:
    """Limit what this process allocates from now on. duckdb_bytes: its own limit."""
    with suppress(ValueError, OSError):
        pages = int(_MEMORY.read_text().split()[_DATA_FIELD])
        limit = pages * resource.getpagesize() + duckdb_bytes + EXTRA_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def out_of_memory() -> SqlError:
    return SqlError("the statement needs more memory; raise memory_limit")
