"""Choose the directory of a local cluster's controllers.

Invariant: with a persistent store, the journal is kept as well; otherwise, the next start would
treat the bucket as empty. With a store in memory, the directory is temporary: it is removed at the
end or, after a kill, by the next start.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final

from penstock.base.errors import ExpectedError
from penstock.base.own_directory import user_directory
from penstock.deploy.clients.state_file import is_running
from penstock.objectstore.url import is_remote

TEMPORARY_PREFIX: Final = "penstock-dev-"
"""Prefix of temporary directories. The owner's pid follows, to distinguish leftovers from
directories in use.
"""


@contextmanager
def controller_directory(store: str, environment: Mapping[str, str]) -> Generator[str]:
    """Yield the directory for the data of the controllers, depending on the store."""
    remove_leftovers()
    if store.startswith("file:"):
        yield f"{store.removeprefix('file:').removeprefix('//').rstrip('/')}/controller"
    elif is_remote(store):
        data = user_directory(environment, "XDG_DATA_HOME", ".local/share")
        yield str(data / hashlib.sha256(store.encode()).hexdigest()[:16])
    else:
        # mkdtemp is not used, because a signal could arrive between the creation of the directory
        # and `try`.
        name = f"{TEMPORARY_PREFIX}{os.getpid()}-{token_hex(8)}"
        directory = Path(tempfile.gettempdir()) / name
        try:
            directory.mkdir(mode=0o700)
            yield str(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def check_store_directory(store: str) -> None:
    """Create the directory of a `file:` store. Raises ExpectedError if it is not writable."""
    if not store.startswith("file:"):
        return
    directory = Path(store.removeprefix("file:").removeprefix("//"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(directory, os.W_OK | os.X_OK) else "it is read-only"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ExpectedError(
            f"cannot write to {directory}: {reason}; choose another directory with --store file:DIR"
        )


def security_directory(store: str, controllers: str) -> Path:
    """Return the directory for certificates and passwords, which has the same lifetime as the
    directory of the controllers.
    """
    if store.startswith("file:"):
        return Path(controllers).with_name("security")
    return Path(controllers) / "security"


def close_objects(store: str) -> None:
    """Restrict the directories of a `file:` store to their owner. Raises ExpectedError."""
    if not store.startswith("file:"):
        return
    root = Path(store.removeprefix("file:").removeprefix("//"))
    for directory in (root / "objects", root / "controller"):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError as error:
            raise ExpectedError(f"{error.filename or directory}: {error.strerror}") from None


def remove_leftovers() -> None:
    """Remove the temporary directories of processes that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*-*"):
        pid = left.name.removeprefix(TEMPORARY_PREFIX).partition("-")[0]
        if pid.isdigit() and not is_running(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
