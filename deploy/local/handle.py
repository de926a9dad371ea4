"""Control a local cluster from a program: the demo, tests, benchmarks.

Invariant: a context manager; at its exit, the cluster has always been stopped. The cluster is
`penstock dev` as users start it. Processes are signaled by the pids of the state file, never by
name.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Self

from penstock.deploy.clients import state_file
from penstock.deploy.clients.state_file import ClusterState, ProcessState
from penstock.deploy.errors import ClusterFailed
from penstock.deploy.local.directories import TEMPORARY_PREFIX, remove_leftovers
from penstock.deploy.node import lifeline

READY_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 20.0
_POLL_INTERVAL_S: Final = 0.02


class LocalCluster:
    """Runs `penstock dev`: `with LocalCluster(["--brokers", "2"]) as cluster: ...`. arguments:
    arguments of `penstock dev`; without --port, any free ports are used.
    """

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        ports = () if "--port" in arguments else ("--port", "0")
        self._arguments = (*ports, *arguments)
        self._directory = tempfile.TemporaryDirectory(prefix=f"{TEMPORARY_PREFIX}{os.getpid()}-")
        self.state_path = Path(self._directory.name) / "state.json"
        self._process: subprocess.Popen[str] | None = None
        self._closed = threading.Event()
        self.ready_line = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Return the supervisor's pid."""
        assert self._process is not None
        return self._process.pid

    @property
    def bootstrap(self) -> str:
        return self.state().bootstrap

    def state(self) -> ClusterState:
        """Return the current state. Raises ClusterFailed if no cluster is running."""
        state = state_file.read(self.state_path)
        if state is None:
            raise ClusterFailed("the local cluster is not running")
        return state

    def brokers(self) -> list[ProcessState]:
        return self.state().of_role("broker")

    def kill(
        self, processes: Sequence[ProcessState], number: signal.Signals = signal.SIGKILL
    ) -> None:
        """Send a signal to these processes, by their pids, unless they have ended."""
        for process in processes:
            if process.pid is not None and process.is_running:
                os.kill(process.pid, number)

    def wait_until(
        self, reached: Callable[[ClusterState], bool], timeout_s: float, what: str
    ) -> ClusterState:
        """Return the first state for which `reached` is true. Raises ClusterFailed after the
        timeout.
        """
        deadline = time.monotonic() + timeout_s
        while not reached(state := self.state()):
            if time.monotonic() > deadline:
                raise ClusterFailed(f"timed out after {timeout_s:.0f} s waiting for {what}")
            time.sleep(_POLL_INTERVAL_S)
        return state

    def wait_for_new(
        self, killed: Sequence[ProcessState], timeout_s: float = READY_TIMEOUT_S
    ) -> ClusterState:
        """Wait until each of these processes has been replaced and serves again."""
        before = {(process.role, process.node_id): process.starts for process in killed}

        def are_new(state: ClusterState) -> bool:
            return all(
                process.phase == "serving" and process.starts > before[key]
                for process in state.processes
                if (key := (process.role, process.node_id)) in before
            )

        return self.wait_until(are_new, timeout_s, "new processes in place of the killed ones")

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stop the cluster like Ctrl-C, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process is not None and process.stdout is not None:
            process.stdout.close()
        if process is not None and process.returncode:  # the cluster was killed or has failed
            remove_leftovers()
        self._closed.set()
        self._directory.cleanup()

    def _start(self) -> None:
        # Linux ends the cluster with the thread that starts it (`deploy.node.lifeline`). The
        # caller's thread may end first.
        starting: Future[subprocess.Popen[str]] = Future()
        threading.Thread(target=self._own, args=(starting,), daemon=True).start()
        self._process = starting.result()
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline().strip()
        if not self.ready_line.startswith("ready:"):
            raise ClusterFailed(
                "the local cluster did not start (exit code"
                f" {self._process.wait(READY_TIMEOUT_S)}); its log is above"
            )

    def _own(self, starting: "Future[subprocess.Popen[str]]") -> None:
        """Start the process, and wait until the cluster is closed."""
        try:
            starting.set_result(self._popen())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            starting.set_exception(error)
            return
        self._closed.wait()

    def _popen(self) -> subprocess.Popen[str]:
        command = (
            sys.executable,
            "-P",
            "-m",
            "penstock.deploy.cli",
            "dev",
            "--state-file",
            str(self.state_path),
            *self._arguments,
        )
        environment = os.environ | {lifeline.PARENT_VARIABLE: str(os.getpid())}
        return subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, text=True, env=environment, process_group=0
        )
