"""Find a directory that belongs to this user alone, for cached code that is loaded and executed
later.
"""

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_NO_HOME: Final = Path("/nonexistent")
"""The home directory of users without one."""


def cache_roots() -> list[Path]:
    """Return candidate directories, best first. Some users have no writable home directory."""
    try:
        home = [Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"]
    except RuntimeError:
        home = []
    return [*home, Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"]


def user_directory(environment: Mapping[str, str], variable: str, name: str) -> Path:
    """Return Penstock's directory below the directory in an XDG variable, or below a directory in
    the user's home. For users without a home, return one in the temporary directory, if no other
    user can write there.
    """
    if named := environment.get(variable):
        return Path(named) / "penstock"
    try:
        return Path.home() / name / "penstock"
    except RuntimeError:
        return own_directory(cache_roots()[-1:]) or _NO_HOME


def own_directory(places: Iterable[Path]) -> Path | None:
    """Return the first usable directory, creating it if necessary, or None. No user other than this
    one and root can have written to it. Never raises.
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
