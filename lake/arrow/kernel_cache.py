"""Cache compiled kernels: compiling takes several seconds, loading takes a few milliseconds."""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from penstock.base.own_directory import cache_roots, own_directory

_FILES: Final = (
    "decode_table.py",
    "decode_job.py",
    "decode_memory.py",
    "decode_kernel.py",
    "kernel_code.py",
)
_SOURCES: Final = tuple(Path(__file__).with_name(name) for name in _FILES)
"""Everything that is frozen into the compiled code."""

_DIGEST_BYTES: Final = 32


def cache_directory() -> Path | None:
    """Return the directory for these kernels, or None if no directory is writable.

    Invariant: code is loaded only from a directory that only this user can write to, because it is
    executed, and only if its digest matches. It is never loaded for different sources, because the
    directory's name contains their hash. If no such directory is writable, each process compiles
    the kernels. `NUMBA_CACHE_DIR` is honored. Importing this module does not import numba or LLVM.
    """
    try:
        name = (
            "penstock-" + sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]
        )
    except OSError:  # the package is in an archive (`--py-files`)
        return None
    given = os.environ.get("NUMBA_CACHE_DIR")
    return own_directory(root / name for root in ([Path(given)] if given else cache_roots()))


def read_code(place: Path) -> bytes | None:
    """Return the code in a file, or None if the file is missing or damaged."""
    try:
        content = place.read_bytes()
    except OSError:
        return None
    code, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return code if sha256(code).digest() == digest else None


def write_code(place: Path, code: bytes) -> None:
    """Store code in a file atomically; ignore write errors."""
    beside = place.with_name(f"{place.name}.{os.getpid()}")
    with suppress(OSError):
        try:
            beside.write_bytes(code + sha256(code).digest())
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)
