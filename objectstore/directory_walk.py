"""Walk a directory tree in the order of object keys.

Invariant: keys are in the order of their UTF-8 bytes, as S3 lists them. A folder sorts as its name
with a slash, because `a-b` comes before `a/x` although `a` comes before `a-b`. Only folders that
can hold a requested key are opened.
Source: S3 ListObjectsV2.
"""

import os
import stat
from collections.abc import Iterator


def walk(
    root: bytes, prefix: bytes, start_after: bytes, reserved: bytes
) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield keys with the prefix that are greater than `start_after`. The names of one folder at a
    time are in memory.

    Files that appear or disappear during the walk may or may not be included.
    """
    return _walk(root, b"", prefix, start_after, reserved)


def _walk(
    folder: bytes, base: bytes, prefix: bytes, start_after: bytes, reserved: bytes
) -> Iterator[tuple[bytes, os.stat_result]]:
    for name, is_folder in _names(folder):
        key = base + name
        if is_folder:
            if key != reserved + b"/" and _may_hold(key, prefix, start_after):
                yield from _walk(os.path.join(folder, name), key, prefix, start_after, reserved)
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
