"""Read and write the state file of a local cluster, which other programs and commands read.

Invariant: the file is always complete, because it is written to a temporary file and renamed. Its
writer removes it on exit, unless another cluster has replaced it. If the writer is killed, the file
remains; `read` detects that the process is missing, or that another process has its pid.
"""

import fcntl
import itertools
import os
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock.base.errors import ExpectedError
from penstock.base.own_directory import user_directory
from penstock.deploy.private_files import write_private

Phase = Literal["starting", "serving", "stopped"]
VARIABLE: Final = "PENSTOCK_STATE_FILE"
CHOOSING_S: Final = 10.0
_LOCK_INTERVAL_S: Final = 0.05
_PS_S: Final = 5.0
_START_FIELD: Final = 19
"""Position of `starttime` in /proc/PID/stat after the name of the program (proc_pid_stat(5))."""


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one process. node_id: None for the store. pid: None while stopped. starts: number of
    times that it was started.
    """

    role: str
    node_id: int | None
    pid: int | None
    host: str
    port: int
    phase: Phase
    starts: int
    pid_started: str = ""
    """Start of the process `pid`, see `start_of`."""

    @property
    def is_running(self) -> bool:
        return self.pid is not None and is_running(self.pid, self.pid_started)


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a local cluster. pid: of the supervisor."""

    pid: int
    bootstrap: str
    controller: str
    store_url: str
    processes: list[ProcessState]
    wal_store_url: str = ""
    """The WAL store; empty if the WALs are in the main store."""
    command_config: str = ""
    """File of client properties; empty if clients do not need one."""
    controller_tls: dict[str, str] = {}
    """TLS settings that commands use to connect to the controllers; empty without TLS."""
    console: str = ""
    """Address of the web console; empty if there is none."""
    cluster_id: str = ""
    """Empty until a node serves."""
    restarts: bool = True
    """Whether the supervisor restarts processes that end."""
    pid_started: str = ""
    """Start of the process `pid`, see `start_of`."""

    def of_role(self, role: str) -> list[ProcessState]:
        return [process for process in self.processes if process.role == role]


def default_path(environment: Mapping[str, str]) -> Path:
    """Return $PENSTOCK_STATE_FILE, or a path in the user's runtime or cache directory."""
    named = environment.get(VARIABLE)
    if named:
        return Path(named)
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "penstock" / "dev.json"
    return user_directory(environment, "XDG_CACHE_HOME", ".cache") / "dev.json"


@contextmanager
def choosing(path: Path) -> Generator[None]:
    """Prevent other clusters of this user from choosing ports and a state file in this context,
    which should last until the state file contains the choice. path: the default state file.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # `check_writable` reports errors if the file is needed
            path.parent.mkdir(parents=True, exist_ok=True)
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, directory)
            _lock(directory)
        yield


def _lock(directory: int) -> None:
    """Wait for the lock, but not longer than CHOOSING_S, because the other process may be
    suspended. Without the lock, a conflict is still detected, because a process reports a port that
    is taken.
    """
    ends_at = time.monotonic() + CHOOSING_S
    while time.monotonic() <= ends_at:
        with suppress(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_INTERVAL_S)


def running(path: Path) -> list[ClusterState]:
    """Return the running clusters of this state file and of the files chosen by `unused_path`."""
    beside = sorted(path.parent.glob(f"{path.stem}-[0-9]*{path.suffix}"))
    return [state for file in (path, *beside) if (state := known(file)) is not None]


def unused_path(path: Path) -> Path:
    """Return the path, or if a running cluster uses it, the first unused one of `dev-2.json`,
    `dev-3.json` and so on in the same directory. Commands and consoles must not confuse two
    clusters.
    """
    numbers = itertools.count(2)
    candidate = path
    while known(candidate) is not None:
        candidate = path.with_stem(f"{path.stem}-{next(numbers)}")
    return candidate


def check_writable(path: Path) -> None:
    """Raise ExpectedError if `write` could not write the file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch(mode=0o600)
        beside.unlink()
    except OSError as error:
        raise _not_written(path, error) from None


def write(path: Path, state: ClusterState) -> None:
    """Write the file with mode 0600, because the store URL may contain keys. Raises ExpectedError
    if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
    except OSError as error:
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> ExpectedError:
    return ExpectedError(
        f"cannot write the state file {path}: {error.strerror}; choose another one with"
        f" --state-file, or for all commands with {VARIABLE}"
    )


def read(path: Path) -> ClusterState | None:
    """Return the state, or None if there is no file or its cluster has ended."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=ClusterState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ExpectedError(f"state file {path} cannot be read: {error}") from None
    return state if is_running(state.pid, state.pid_started) else None


def known(path: Path) -> ClusterState | None:
    """Return the state, or None if there is no cluster, or no readable file."""
    try:
        return read(path)
    except ExpectedError:
        return None


def of_user() -> ClusterState | None:
    """Return the state of this user's local cluster, like `known`."""
    return known(default_path(os.environ))


def remove(path: Path) -> None:
    """Remove the file if this process wrote it, because a cluster that was started later may have
    replaced it.
    """
    with suppress(OSError, msgspec.MsgspecError):
        if msgspec.json.decode(path.read_bytes(), type=ClusterState).pid == os.getpid():
            path.unlink()


def start_of(pid: int) -> str:
    """Return text that identifies the process with this pid and differs for a later process with
    the same pid. Empty if there is no process or the system does not provide the text.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return _start_shown_by_ps(pid)
    return f"{boot}/{fields[_START_FIELD].decode()}"


def _start_shown_by_ps(pid: int) -> str:
    """Return the time at which a process was started, on systems without /proc such as macOS."""
    command = ("ps", "-o", "lstart=", "-p", str(pid))
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        found = subprocess.run(  # noqa: S603 - a fixed command
            command, env=environment, capture_output=True, text=True, check=False, timeout=_PS_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()


def is_running(pid: int, started: str = "") -> bool:
    """Return whether the process is running. started: its `start_of`; if empty, any process with
    the pid counts.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not started or start_of(pid) in ("", started)
