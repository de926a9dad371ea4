"""Cache compiled kernels: compiling takes some seconds, loading a third of a second.

Invariant: code is loaded only from a directory that belongs to this user alone, because numba
unpickles what it finds. It is never loaded for other sources: the directory's name contains their
hash (numba itself checks only the time and size of one file). If no such directory is writable,
each process compiles the kernels. `NUMBA_CACHE_DIR` is honored. Importing this module does not
import numba.
"""

import os
import platform
import sys
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from base.own_directory import cache_roots, own_directory

_FILES: Final = "decode_table.py", "decode_job.py", "decode_memory.py", "decode_kernel.py"
KERNELS: Final = tuple(str(Path(__file__).with_name(name)) for name in _FILES)
"""The source files of the decoder's kernels: everything that is frozen into the compiled code."""


@contextmanager
def directory(*sources: str) -> Generator[bool]:
    """Let numba cache what it compiles in our directory. Yield whether there is one. `sources` are
    the files of the code.
    """
    place = place_of(*sources)
    if place is None:
        yield False
        return
    import numba.core.config

    config: Any = numba.core.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(place)
    try:
        yield True
    finally:
        config.CACHE_DIR = before


def place_of(*sources: str) -> Path | None:
    """Return the cache directory, or None if none is writable."""
    try:
        name = (
            "penstock-"
            + sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()[:16]
        )
    except OSError:  # the package lies in an archive (`--py-files`)
        return None
    given = os.environ.get("NUMBA_CACHE_DIR")
    return own_directory(root / name for root in ([Path(given)] if given else cache_roots()))


def stamp_in(place: Path) -> Path:
    """Return the file that marks the cache as complete for this Python and numba. It is a hint:
    numba checks again.
    """
    return (
        place / f"complete-{sys.implementation.cache_tag}-{version('numba')}-{platform.machine()}"
    )


def complete(*sources: str) -> None:
    """Mark all kernels of these sources as compiled."""
    place = place_of(*sources)
    if place is not None:
        stamp_in(place).touch()
