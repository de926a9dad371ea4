"""Start the processes of a plan, watch them, restart dead ones, and stop all of them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.listening import EXIT_NOT_LISTENING
from penstock.base.readiness import PIPE_VARIABLE, REPORT_BYTES_MAX
from penstock.deploy.clients.state_file import Phase, ProcessState, start_of
from penstock.deploy.errors import ClusterFailed, PortTaken
from penstock.deploy.local import bytecode
from penstock.deploy.local.plan import PORT_FLAGS, ClusterPlan, ProcessPlan
from penstock.deploy.node import lifeline

START_TIMEOUT_S: Final = 180.0
"""Timeout of a start. The first start in an environment compiles all modules, which takes over 60 s
at a load of 20.
"""
STOP_TIMEOUT_S: Final = 8.0
"""Time allowed for an orderly stop, which is longer than the brokers' own limit. After it, SIGKILL
is sent, which also ends paused processes.
"""

RESTART_FIRST_S: Final = 1.0
"""Delay of the first restart. Starting a process takes about 1 s of CPU time, which on a small
machine would delay the brokers that take over from the dead one.
"""

RESTART_MAX_S: Final = 5.0
STEADY_S: Final = 10.0
"""Lifetime after which earlier failures of a process no longer delay its restart."""

_READY_INTERVAL_S: Final = 0.03
_FENCED: Final = 3
"""Exit code of a node that was fenced: `broker.main.EXIT_FENCED`."""
_POLL_INTERVAL_S: Final = 1.0
"""Polling interval of processes, in addition to SIGCHLD, which may get lost under load."""


def restart_delay_s(failures: int) -> float:
    """Return the delay, which doubles with each consecutive failure from 1 s to 5 s."""
    return min(RESTART_FIRST_S * 2.0**failures, RESTART_MAX_S)


def describe_end(code: int) -> str:
    """Describe an exit code in words."""
    return (
        f"was killed by {signal.Signals(-code).name}"
        if code < 0
        else f"ended with exit code {code}"
    )


def start_process(
    arguments: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a Python process that ends with this one, in its own process group."""
    return subprocess.Popen(  # noqa: S603 - our own modules, no shell
        (sys.executable, "-P", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=bytecode.environment(environment) | {lifeline.PARENT_VARIABLE: str(os.getpid())},
        pass_fds=pass_fds,
        process_group=0,
    )


def state_of(plan: ProcessPlan, pid: int | None, phase: Phase, starts: int) -> ProcessState:
    """Return the state of a planned process. pid: None while it is stopped."""
    return ProcessState(
        role=plan.role,
        node_id=plan.node_id,
        pid=pid,
        host=plan.host,
        port=plan.port,
        phase=phase,
        starts=starts,
        pid_started="" if pid is None else start_of(pid),
    )


@dataclass(slots=True, eq=False)
class _Child:
    plan: ProcessPlan
    process: subprocess.Popen[bytes] | None = None
    phase: Phase = "stopped"
    starts: int = 0
    failures: int = 0
    started_at: float = 0.0
    ready_pipe: int | None = None
    """The pipe on which the process reports that it serves; None once it has reported or ended."""

    def state(self) -> ProcessState:
        pid = None if self.process is None else self.process.pid
        return state_of(self.plan, pid, self.phase, self.starts)


class Supervisor:
    """Runs the processes of a plan. store_socket: the listening socket that the store inherits, so
    that clients never find a closed port. on_change: called after each start, first response and
    exit. say: prints a line for the user.

    Invariants: each process has its own process group, so Ctrl-C reaches only the supervisor, which
    stops the others in order. Each is killed if the supervisor dies (`deploy.node.lifeline`). `run`
    returns when no process is left. All processes are treated alike, except that nodes report over
    a pipe that they serve (`base.readiness`), and that a dead store has lost its contents.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        environment: Mapping[str, str],
        store_socket: socket.socket | None,
        on_change: Callable[[Sequence[ProcessState]], None],
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self.cluster_id = ""
        """Reported by the first controller or broker that serves."""
        self._environment = environment
        self._store_socket = store_socket
        self._on_change = on_change
        self._say = say
        self._children = [_Child(process) for process in plan.processes]
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ready = False
        self._is_stopping = False
        self._is_hurried = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Run until `stop` is set. Calls `ready` once, when every process serves. Raises PortTaken
        or ClusterFailed after stopping everything.
        """
        self._loop.add_signal_handler(signal.SIGCHLD, self._poll)
        try:
            for child in self._children:
                self._start(child)
            self._spawn(self._poll_regularly())
            self._spawn(self._wait_until_ready(ready))
            stopping = self._loop.create_task(stop.wait())
            await asyncio.wait((stopping, self._failed), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if self._failed.done():
                self._failed.result()
        finally:
            await self._stop_all()
            self._loop.remove_signal_handler(signal.SIGCHLD)

    def hurry(self) -> None:
        """Kill the processes instead of waiting for an orderly stop."""
        self._is_hurried.set()

    # --- start ------------------------------------------------------------------------------------

    def _start(self, child: _Child) -> None:
        is_store = child.plan.role == "store"
        inherited = self._store_socket if is_store else None
        arguments, fds = child.plan.arguments, tuple[int, ...]()
        if inherited is not None:
            fds = (inherited.fileno(),)
            arguments = (*arguments, "--fd", str(fds[0]))
        child.ready_pipe, report = os.pipe()
        variables = {**child.plan.environment, PIPE_VARIABLE: str(report)}
        try:
            child.process = start_process(
                arguments, {**self._environment, **variables}, (*fds, report)
            )
        finally:
            os.close(report)
        if inherited is not None:
            inherited.close()
        child.phase = "serving" if is_store else "starting"  # the store's socket already listens
        child.starts += 1
        child.started_at = self._loop.time()
        self._report_change()
        self._loop.add_reader(child.ready_pipe, self._on_report, child, child.process)

    def _on_report(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        """Handle the report that a process serves, or its end without a report."""
        assert child.ready_pipe is not None
        report = os.read(child.ready_pipe, REPORT_BYTES_MAX)
        self._close_pipe(child)
        if not report or child.process is not process:
            return
        self.cluster_id = self.cluster_id or report.decode().strip()
        child.phase = "serving"
        self._report_change()
        if self._is_ready and child.plan.role == "broker":
            self._say(f"{child.plan.name} (pid {process.pid}) serves again")

    def _close_pipe(self, child: _Child) -> None:
        if child.ready_pipe is not None:
            self._loop.remove_reader(child.ready_pipe)
            os.close(child.ready_pipe)
            child.ready_pipe = None

    async def _wait_until_ready(self, ready: Callable[[], None]) -> None:
        deadline = self._loop.time() + START_TIMEOUT_S
        while waiting := [child.plan.name for child in self._children if child.phase != "serving"]:
            if self._loop.time() > deadline:
                raise ClusterFailed(
                    f"not ready after {START_TIMEOUT_S:.0f} s: {', '.join(waiting)}; see the log"
                    " above, or add --log-level info"
                )
            await asyncio.sleep(_READY_INTERVAL_S)
        self._is_ready = True
        ready()

    # --- watch ------------------------------------------------------------------------------------

    async def _poll_regularly(self) -> None:
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            self._poll()

    def _poll(self) -> None:
        for child in self._children:
            process = child.process
            if process is not None and (code := process.poll()) is not None:
                self._close_pipe(child)
                child.process = None
                child.phase = "stopped"
                self._report_change()
                if not self._is_stopping:
                    self._handle_end(child, process.pid, code)

    def _handle_end(self, child: _Child, pid: int, code: int) -> None:
        event = f"{child.plan.name} (pid {pid}) {describe_end(code)}"
        # On a busy machine, a broker may be fenced as soon as it has started.
        may_restart = self._is_ready or (code == _FENCED and self._plan.restart)
        plan = child.plan
        if not may_restart and code == EXIT_NOT_LISTENING:
            self._fail(PortTaken(plan.host, plan.port, PORT_FLAGS[plan.role]))
        elif not may_restart:
            self._fail(ClusterFailed(f"{event} before the cluster was ready; its log is above"))
        elif plan.role == "store":
            self._fail(ClusterFailed(f"{event}, and its objects are lost"))
        elif not self._plan.restart:
            self._say(f"{event}; it stays down (--no-restart)")
        else:
            lived_s = self._loop.time() - child.started_at
            child.failures = 0 if lived_s >= STEADY_S else child.failures + 1
            delay_s = restart_delay_s(max(child.failures - 1, 0))
            self._say(
                f"{event}; restarting it" + (f" in {delay_s:.1f} s" if delay_s >= 0.5 else "")
            )
            self._spawn(self._restart(child, delay_s))

    async def _restart(self, child: _Child, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if not self._is_stopping and child.process is None:
            self._start(child)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def _report_change(self) -> None:
        self._on_change([child.state() for child in self._children])

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_over)

    def _task_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    # --- stop -------------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        for role in ("broker", "controller", "store"):
            await self._stop([child for child in self._children if child.plan.role == role])
        if self._store_socket is not None:
            self._store_socket.close()

    async def _stop(self, children: list[_Child]) -> None:
        deadline = self._loop.time() + (0.0 if self._failed.done() else STOP_TIMEOUT_S)
        _signal(children, signal.SIGTERM)
        while any(child.process for child in children):
            if self._is_hurried.is_set() or self._loop.time() > deadline:
                _signal(children, signal.SIGKILL)
            await asyncio.sleep(0.02)
            self._poll()


def _signal(children: list[_Child], number: signal.Signals) -> None:
    for child in children:
        if child.process is not None:
            child.process.send_signal(number)
