"""Where the processes of a local cluster find their bytecode when it does not lie beside the
sources.

pip compiles what it installs, and Python keeps what it compiled. uv does not compile, and
`PYTHONDONTWRITEBYTECODE`, which container images like to set, forbids to keep it: every start of
every process then compiles 500 modules, more than half of its CPU time. Then it is kept in a
directory of the user's own; nothing is written beside sources.
Invariants: an installation that is compiled, or that Python may compile, is left alone, as is who
chose a place; nobody else can write to it. Nodes that an operator starts never come here. Must not
import anything that costs: it is what is run first.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FORBIDS: Final = "PYTHONDONTWRITEBYTECODE"
_PLACE: Final = "PYTHONPYCACHEPREFIX"


def environment(given: Mapping[str, str], source: str = __file__) -> dict[str, str]:
    """For a child process; as given, if there is nothing to mend. source: a module that stands for
    all.
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


def keep_here(source: str = __file__) -> None:
    """For what this process imports from now on."""
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
    from base.own_directory import cache_roots, own_directory

    return own_directory(root / "bytecode" for root in cache_roots())
