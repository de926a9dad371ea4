"""Which file systems can be shared by several machines."""

import pytest

from penstock.objectstore.mounts import mount_of, parse_mountinfo, why_unsuitable

TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard
30 22 0:40 / /mnt/efs rw,relatime shared:5 - nfs4 fs-1.efs:/ rw,vers=4.1,hard,lookupcache=pos
31 30 0:41 / /mnt/efs/two\040words rw - cifs //host/share rw,vers=3.0
32 22 0:42 / /mnt/twice rw - ext4 /dev/sdb rw
33 22 0:43 / /mnt/twice rw - fuse.s3fs s3fs rw,user_id=0
34 22 0:44 / /mnt/plain rw master:7 propagate_from:2 - xfs /dev/sdc rw
not a mount
"""
NFS = "rw,vers=4.1,hard,lookupcache=pos"


@pytest.mark.parametrize(
    ("path", "point", "fs_type"),
    [
        ("/", "/", "ext4"),
        ("/mnt", "/", "ext4"),
        ("/mnt/efs", "/mnt/efs", "nfs4"),
        ("/mnt/efs/wals/1", "/mnt/efs", "nfs4"),
        ("/mnt/efs2", "/", "ext4"),
        ("/mnt/efs/two words/x", "/mnt/efs/two words", "cifs"),
        ("/mnt/twice/x", "/mnt/twice", "fuse.s3fs"),
        ("/mnt/plain", "/mnt/plain", "xfs"),
    ],
)
def test_the_deepest_and_latest_mount_contains_a_path(path: str, point: str, fs_type: str) -> None:
    found = mount_of(path, parse_mountinfo(TABLE))
    assert found is not None
    assert (found.point, found.fs_type) == (point, fs_type)


def test_without_a_mount_table_there_is_no_mount() -> None:
    assert mount_of("/mnt", parse_mountinfo("")) is None


@pytest.mark.parametrize(
    ("fs_type", "options", "why"),
    [
        ("ext4", "rw", None),
        ("xfs", "rw", None),
        ("btrfs", "rw", None),
        ("overlay", "rw", None),
        ("ceph", "rw,acl", None),
        ("fuse.ceph-fuse", "rw", None),
        ("lustre", "rw", None),
        ("nfs4", NFS, None),
        ("nfs4", "rw,vers=4.2,hard,lookupcache=none", None),
        ("nfs4", "rw,vers=4.2,hard,lookupcache=positive", None),
        ("cifs", "rw", "SMB"),
        ("smb3", "rw", "SMB"),
        ("fuse.s3fs", "rw", "behind FUSE"),
        ("fuse.mountpoint-s3", "rw", "behind FUSE"),
        ("fuse.gcsfuse", "rw", "behind FUSE"),
        ("fuse.rclone", "rw", "behind FUSE"),
        ("fuse", "rw", "behind FUSE"),
        ("vfat", "rw", "no hard links"),
        ("exfat", "rw", "no hard links"),
        ("9p", "rw", "no hard links"),
        ("nfs4", "rw,vers=4.1,soft,lookupcache=pos", "mounted with soft"),
        ("nfs4", "rw,vers=4.1,softerr,lookupcache=pos", "mounted with softerr"),
        ("nfs4", "rw,vers=4.1,hard", "lookupcache=all"),
        ("nfs4", "rw,vers=4.1,hard,lookupcache=all", "lookupcache=all"),
        ("nfs4", "rw,vers=4.0,hard,lookupcache=none", "vers=4.0"),
        ("nfs", "rw,vers=3,hard,lookupcache=none", "vers=3"),
        ("nfs", "rw,hard,lookupcache=none", "vers=3"),
        ("nfs4", "rw,vers=four,hard,lookupcache=none", "vers=four"),
    ],
)
def test_errors_contain_the_file_system_that_cannot_be_shared(
    fs_type: str, options: str, why: str | None
) -> None:
    (mount,) = parse_mountinfo(f"30 22 0:40 / /mnt rw,relatime - {fs_type} source {options}")
    found = why_unsuitable(mount)
    assert (found is None) == (why is None), found
    if why is not None:
        assert found is not None
        assert why in found
        assert "hard,vers=4.1,lookupcache=positive" in found or not fs_type.startswith("nfs")
