"""A directory that belongs to this user alone, for code that is kept between runs: what is loaded
from it runs.

Invariant: what is returned exists, can be written, and nobody else could have put anything into it
(but root). Never raises.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def cache_roots() -> list[Path]:
    """Where such directories may lie, best first. Some users have no home that can be written."""
    try:
        home = [Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"]
    except RuntimeError:
        home = []
    return [*home, Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"]


def own_directory(places: Iterable[Path]) -> Path | None:
    """The first that is ours, made if it is missing; None if none is."""
    return next((place for place in places if _is_ours(place)), None)


def _is_ours(place: Path) -> bool:
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        owners = {place.stat().st_uid, place.parent.stat().st_uid}
        return (
            os.access(place, os.W_OK)
            and owners <= {os.getuid(), 0}
            and not place.stat().st_mode & 0o022
        )
    except OSError:
        return False
