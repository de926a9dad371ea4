"""Where the controller of a local cluster keeps its journal: beside the objects that it describes,
for as long as they live.

Invariant: a store that outlives the command keeps its journal, or the next start would take the
bucket for an empty one; one that does not gets a temporary directory, which is removed at the end.
What a killed command left behind is removed by the next one.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.clients.state_file import is_running

TEMPORARY_PREFIX: Final = "penstock-dev-"
"""Then the pid of the owner: that is how leftovers are told from what is in use."""


@contextmanager
def controller_directory(store: str, environment: Mapping[str, str]) -> Generator[str]:
    """The directory for the controller's data, by the store's form."""
    if store.startswith("file:"):
        yield f"{store.removeprefix('file:').removeprefix('//').rstrip('/')}/controller"
    elif store.startswith("s3:"):
        data = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
        yield str(Path(data) / "penstock" / hashlib.sha256(store.encode()).hexdigest()[:16])
    else:
        _remove_leftovers()
        directory = tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}{os.getpid()}-")
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _remove_leftovers() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*-*"):
        pid = left.name.removeprefix(TEMPORARY_PREFIX).partition("-")[0]
        if pid.isdigit() and not is_running(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
