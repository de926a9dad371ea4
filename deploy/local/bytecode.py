"""Choose the bytecode directory for the processes of a local cluster if the installation is not
compiled.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FORBIDS: Final = "PYTHONDONTWRITEBYTECODE"
_PLACE: Final = "PYTHONPYCACHEPREFIX"


def environment(given: Mapping[str, str], source: str = __file__) -> dict[str, str]:
    """Return the environment for a child process. source: a module that represents the
    installation.

    pip compiles packages; uv does not, and `PYTHONDONTWRITEBYTECODE`, which many container images
    set, prevents Python from storing bytecode. Every process would then compile 500 modules at
    startup, which takes more than half of its CPU time. This module stores the bytecode in a user
    directory instead. Invariants: no effect if the installation is compiled, Python may compile it,
    or a cache directory is set. Nothing is written next to the sources. No other user can write to
    the directory. Not used by nodes that operators start. Nothing expensive is imported, because
    this runs first.
    """
    changed = dict(given)
    if (
        not given.get(_PLACE)
        and _is_missing(Path(source), forbidden=bool(given.get(_FORBIDS)))
        and (place := _own()) is not None
    ):
        changed.pop(_FORBIDS, None)
        changed[_PLACE] = str(place)
    return changed


def keep_bytecode(source: str = __file__) -> None:
    """Keep the bytecode of modules that this process imports from now on."""
    if (
        sys.pycache_prefix is None
        and _is_missing(Path(source), forbidden=sys.dont_write_bytecode)
        and (place := _own()) is not None
    ):
        sys.pycache_prefix, sys.dont_write_bytecode = str(place), False


def _is_missing(source: Path, *, forbidden: bool) -> bool:
    compiled = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    return (forbidden or not os.access(source.parent, os.W_OK)) and not compiled.exists()


def _own() -> Path | None:
    from penstock.base.own_directory import cache_roots, own_directory

    return own_directory(root / "bytecode" for root in cache_roots())
