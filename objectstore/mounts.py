"""Find the file system of a path in the mount table, and determine whether it supports a shared
directory. Pure. Source: proc_pid_mountinfo(5), nfs(5).
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_SMB: Final = frozenset({"cifs", "smb3", "smbfs", "smb2"})
_FUSE_WITH_LINKS: Final = frozenset({"fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs"})
"""FUSE file systems that have servers of their own and support hard links."""
_NO_LINKS: Final = frozenset(
    {"vfat", "msdos", "exfat", "afs", "9p", "iso9660", "squashfs", "erofs"}
)
_FRESH_LOOKUPS: Final = frozenset({"pos", "positive", "none"})
_NFS_OPTIONS: Final = (
    "mount it with hard,vers=4.1,lookupcache=positive, or with a later version of NFS"
)


class Mount(NamedTuple):
    """One line of the mount table. options: the options of the mount and the file system, by
    name.
    """

    point: str
    fs_type: str
    source: str
    options: dict[str, str]


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the mounts in /proc/self/mountinfo, in order. Invalid lines are skipped."""
    found: list[Mount] = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, end = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(end) < 2:
            continue
        options = {
            name: value
            for option in (*fields[5].split(","), *(end[2].split(",") if len(end) > 2 else ()))
            for name, _, value in [option.partition("=")]
        }
        found.append(Mount(_unescaped(fields[4]), end[0], _unescaped(end[1]), options))
    return found


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount that contains an absolute path without links: the one with the longest mount
    point. If several have the same mount point, return the last one.
    """
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def why_unsuitable(mount: Mount) -> str | None:
    """Return the reason why several machines cannot share a directory on this mount, with the
    remedy, or None if no reason is known.
    """
    fs_type = mount.fs_type
    if fs_type in _SMB:
        return f"{fs_type} (SMB) caches names and has no reliable hard links: use NFS or CephFS"
    if fs_type.startswith("fuse") and fs_type not in _FUSE_WITH_LINKS:
        return (
            f"{fs_type} may be a bucket behind FUSE, which has no hard links: use s3://, gs:// or"
            " az:// for a bucket"
        )
    if fs_type in _NO_LINKS:
        return f"{fs_type} has no hard links between folders: use NFS or CephFS"
    if fs_type in {"nfs", "nfs4"}:
        return _why_unsuitable_nfs(mount.options)
    return None


def _why_unsuitable_nfs(options: dict[str, str]) -> str | None:
    soft = next((name for name in ("soft", "softerr") if name in options), None)
    if soft is not None:
        return (
            f"it is mounted with {soft}, so a write may fail and take place later: {_NFS_OPTIONS}"
        )
    cached = options.get("lookupcache", "all")
    if cached not in _FRESH_LOOKUPS:
        return (
            f"it is mounted with lookupcache={cached}, so a client does not see new files for up to"
            f" a minute: {_NFS_OPTIONS}"
        )
    version = options.get("vers", options.get("nfsvers", ""))
    if _version(version) < (4, 1):
        return f"it is mounted with vers={version or '3'}, without sessions: {_NFS_OPTIONS}"
    return None


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    if not major.isdecimal() or (minor and not minor.isdecimal()):
        return 0, 0
    return int(major), int(minor or 0)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
