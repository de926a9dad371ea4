"""Where compiled kernels are kept: compiling takes some seconds, loading a third of one.

Invariant: code is loaded only from a directory that belongs to this user alone, since numba
unpickles what it finds; and never for other sources than those at hand, since the directory's name
has their hash (numba itself looks at one file's time and size only). Where no such directory can be
written, kernels are compiled once per process. `NUMBA_CACHE_DIR` is obeyed. Importing this does not
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
"""The sources of the decoder's kernels: all that is frozen into what is compiled of them."""


@contextmanager
def directory(*sources: str) -> Generator[bool]:
    """While this is open, numba puts what it compiles into our place; yields whether there is one.
    sources: files of the code.
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
    """None: there is nowhere to keep anything."""
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
    """Says that everything was compiled with this Python and this numba. A hint: numba looks
    itself.
    """
    return (
        place / f"complete-{sys.implementation.cache_tag}-{version('numba')}-{platform.machine()}"
    )


def complete(*sources: str) -> None:
    """All kernels of these sources are compiled, or were loaded."""
    place = place_of(*sources)
    if place is not None:
        stamp_in(place).touch()
