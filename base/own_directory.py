"""Find a directory that belongs to this user alone, for cached code that is loaded and executed
later.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def cache_roots() -> list[Path]:
    """Return candidate directories, best first. Some users have no writable home."""
    try:
        home = [Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"]
    except RuntimeError:
        home = []
    return [*home, Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"]


def own_directory(places: Iterable[Path]) -> Path | None:
    """Return the first usable directory, created if it is missing, or None. No other user except
    root can have written to it. Never raises.
    """
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
