"""Where compiled kernels are kept: compiling takes some seconds, loading a third of one.

Invariant: code is loaded only from a directory that belongs to this user alone, since numba unpickles what it finds; and never for other
sources than those at hand, since the directory's name has their hash (numba itself looks at one file's time and size only). Where no such
directory can be written, kernels are compiled once per process. `NUMBA_CACHE_DIR` is obeyed.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba.core.config

from stream.own_directory import cache_roots, own_directory


@contextmanager
def directory(*sources: str) -> Generator[bool]:
    """While this is open, numba puts what it compiles into our place; yields whether there is one. sources: files of the code."""
    place = _place(sources)
    if place is None:
        yield False
        return
    config: Any = numba.core.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(place)
    try:
        yield True
    finally:
        config.CACHE_DIR = before


def _place(sources: tuple[str, ...]) -> Path | None:
    try:
        name = "penstock-" + sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()[:16]
    except OSError:  # the package lies in an archive (`--py-files`)
        return None
    given = os.environ.get("NUMBA_CACHE_DIR")
    return own_directory(root / name for root in ([Path(given)] if given else cache_roots()))
