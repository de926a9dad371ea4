"""Compile the kernels in the background while the first tasks on a machine run, so that no record
waits for the compiler. Compiling takes 8 s of CPU time, once per version.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from penstock.lake.arrow import kernel_cache

if TYPE_CHECKING:
    from penstock.lake.arrow.kernel_code import Kernels

_WORTHWHILE_BYTES: Final = 8 << 20
"""Number of decoded bytes above which loading LLVM and the kernels, which takes 0.1 s of CPU time,
pays off. On a slow machine, the numpy decoder reaches 16 MB/s with 16 KiB batches and 250 MB/s with
1 MiB batches of 1 KB records.
"""


class _Build:
    """The state of this process: the compiler that it started, if any, the bytes that it has
    decoded, or will decode, without the kernels, and the kernels, once they are loaded.
    """

    process: subprocess.Popen[bytes] | None = None
    decoded_bytes = 0
    kernels: "Kernels | None" = None
    lock = Lock()


def are_wanted(size_bytes: int | None) -> bool:
    """Return whether the kernels are ready and loading them pays off for this number of bytes
    together with earlier ones. None means an unknown number of bytes.
    """
    if _Build.kernels is not None:
        return True
    if size_bytes is not None:
        _Build.decoded_bytes += size_bytes
        if _Build.decoded_bytes < _WORTHWHILE_BYTES:
            return False
    return are_at_hand()


def are_at_hand() -> bool:
    """Return whether the kernels are ready. If not, start compiling them unless another process is
    doing so.
    """
    if _Build.kernels is not None:
        return True
    directory = kernel_cache.cache_directory()
    if directory is None or _file_in(directory).exists():
        return True
    if _Build.process is None:
        return not _begin(directory)
    return _Build.process.poll() is not None


def kernels() -> "Kernels":
    """Return the kernels; compile them if they are not in the cache.

    Until the kernels are ready, tasks decode with `decode_numpy`, which returns the same rows; each
    task checks again. Processes with little data to decode use it as well, because loading LLVM
    would take most of their time. The compiler is a separate process: a thread would compete with
    the task for the GIL, and the exit of a task must not interrupt the compiler. Invariants: at
    most one such process per machine and user runs at a time (it holds a lock). It may outlive the
    task that started it, and nothing waits for it. If it fails, or if nothing can be cached, the
    next use compiles the kernels itself and raises the error.
    """
    with _Build.lock:
        if _Build.kernels is None:
            from penstock.lake.arrow import kernel_code

            _Build.kernels = kernel_code.load_kernels(_code())
        return _Build.kernels


def _code() -> bytes:
    """Return the code from the cache, or compile and cache it."""
    from penstock.lake.arrow import kernel_code

    directory = kernel_cache.cache_directory()
    place = None if directory is None else _file_in(directory)
    code = None if place is None else kernel_cache.read_code(place)
    if code is None:
        code = kernel_code.compile_kernels()
        if place is not None:
            kernel_cache.write_code(place, code)
    return code


def _file_in(directory: Path) -> Path:
    """Return the cache file of the code for this CPU."""
    from penstock.lake.arrow.kernel_code import machine_hash

    return directory / f"{machine_hash()}.o"


def _begin(directory: Path) -> bool:
    """Start compiling. Return whether the kernels are being compiled, by this process or another
    one.
    """
    try:
        lock = os.open(directory / "compiling", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _Build.process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            (sys.executable, "-c", f"from {__name__} import kernels; kernels()"),
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
