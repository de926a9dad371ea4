"""Walk a directory tree in the order of object keys: by UTF-8 bytes, as S3 lists them.

Invariant: a folder sorts as its name with a slash, because `a-b` precedes `a/x` although `a`
precedes `a-b`. Only folders that may contain requested keys are opened.
"""

import os
import stat
from collections.abc import Callable, Iterator


def walk(
    root: bytes, prefix: bytes, start_after: bytes, is_hidden: Callable[[bytes], bool]
) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield keys with the prefix that are greater than `start_after`. Only the entries of the
    folders on the current path are kept in memory. is_hidden: returns whether files and folders
    with this name are not part of the store.

    Files that appear or disappear during the walk may or may not be included.
    """
    return _walk(root, b"", prefix, start_after, is_hidden)


def _walk(
    folder: bytes,
    base: bytes,
    prefix: bytes,
    start_after: bytes,
    is_hidden: Callable[[bytes], bool],
) -> Iterator[tuple[bytes, os.stat_result]]:
    for name, is_folder in _names(folder):
        key = base + name
        if is_hidden(name):
            continue
        if is_folder:
            if _may_hold(key, prefix, start_after):
                yield from _walk(os.path.join(folder, name), key, prefix, start_after, is_hidden)
        elif key > start_after and key.startswith(prefix):
            try:
                found = os.stat(os.path.join(folder, name), follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield key, found


def _names(folder: bytes) -> list[tuple[bytes, bool]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry.name + b"/", True)
                if entry.is_dir(follow_symlinks=False)
                else (entry.name, False)
                for entry in entries
            )
    except FileNotFoundError:
        return []


def _may_hold(base: bytes, prefix: bytes, start_after: bytes) -> bool:
    """Return whether a key below `base` (which ends with a slash) can have the prefix and sort
    after `start_after`.
    """
    if not (base.startswith(prefix) or prefix.startswith(base)):
        return False
    return base > start_after or start_after.startswith(base)
