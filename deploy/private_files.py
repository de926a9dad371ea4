"""Write files that contain secrets."""

import os
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read. It is always complete, because it is written
    under a temporary name and renamed. Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    beside.replace(path)
