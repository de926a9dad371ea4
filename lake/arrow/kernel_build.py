"""Compiles the kernels beside the first tasks on a machine: it takes 8 s of CPU, once per version,
and no record waits for it.

Until it is done tasks decode with `decode_numpy`, which gives the same rows; each task looks again.
So do processes that have little to decode, for whom the import of the kernels would be most of the
time. It is a process of its own: compiling in a thread would hold the GIL against the task that it
is to help, and a process that ends must not take a compiler in mid-air with it.
Invariants: one such process a machine and user at a time (a lock that it holds); it outlives the
task that began it, and nobody waits for it. Where it fails, or where nothing can be kept, kernels
are compiled in the open, at the next use, and the error is seen.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from lake.arrow import kernel_cache

_KERNELS: Final = "lake.arrow.decode_kernel"
_WORTHWHILE_BYTES: Final = 16 << 20
"""Numba and the kernels take a process about a second of CPU to import (1.4 s measured on a slow
machine, where the other decoder does 16 MB/s of 16 KiB batches and 250 MB/s of 1 MiB ones with
records of 1 KB).
"""


class _Build:
    """The one that this process began, if it did."""

    process: subprocess.Popen[bytes] | None = None


class _Decoded:
    """What this process has decoded, or was about to, without the kernels."""

    size_bytes = 0


def are_wanted(size_bytes: int | None) -> bool:
    """Whether the kernels are at hand, and so much (None: nobody knows) is worth importing them, on
    top of what there was before.
    """
    if _KERNELS in sys.modules:
        return True
    if size_bytes is not None:
        _Decoded.size_bytes += size_bytes
        if _Decoded.size_bytes < _WORTHWHILE_BYTES:
            return False
    return are_at_hand()


def are_at_hand() -> bool:
    """False: use the other decoder this time; the kernels are being compiled."""
    if _KERNELS in sys.modules:
        return True
    place = kernel_cache.place_of(*kernel_cache.KERNELS)
    if place is None or kernel_cache.stamp_in(place).exists():
        return True
    if _Build.process is None:
        return not _begin(place)
    return _Build.process.poll() is not None


def _begin(place: Path) -> bool:
    """Whether they are being compiled now, by a process of ours or of somebody else."""
    try:
        lock = os.open(place / "compiling", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _Build.process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            (sys.executable, "-c", f"import {_KERNELS}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
            pass_fds=(lock,),
            process_group=0,
        )
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
