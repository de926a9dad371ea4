"""Run the web console of a node in a separate process, and pass connections to it."""

import asyncio
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from typing import Final

import structlog

from penstock.base.extras import install_hint
from penstock.deploy.node import lifeline
from penstock.deploy.node.console_plan import BASE, ConsolePlan

START_S: Final = 20.0
RESTART_S: Final = 5.0
STOP_S: Final = 3.0
WAITING_MAX: Final = 16
REQUEST_BYTES_MAX: Final = 128 << 10
"""Size limit of a datagram to the process."""
READY: Final = b"r"
"""The process sends this message when it accepts connections."""
_LOOK_S: Final = 0.1
_BUFFER_BYTES: Final = 512 << 10
_MODULES: Final = ("jinja2", "starlette", "uvicorn")

_log = structlog.get_logger(__name__)


class NodeConsole:
    """Owns at most one console process, and belongs to one event loop.

    The node reads the head of a request. Requests for the console are passed to its process with
    their connection (SCM_RIGHTS), so pages do not use the event loop of the node. Invariants: the
    process starts with the first request for the console. It ends with the node. If it exits, the
    next request restarts it, at most once in `RESTART_S`. Limits: `WAITING_MAX` connections wait
    while it starts, for at most `START_S`; the part of a request that is read has at most
    `REQUEST_BYTES_MAX`.
    """

    def __init__(self, plan: ConsolePlan) -> None:
        self._plan = plan
        self._environment = plan.environment(os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._starting = asyncio.Lock()
        self._waiting = 0
        self._started_at = float("-inf")

    @staticmethod
    def has(path: str) -> bool:
        """Return whether a path belongs to the console."""
        return path == BASE or path.startswith(f"{BASE}/")

    def warn(self) -> None:
        """Log warnings for the operator at startup."""
        missing = [name for name in _MODULES if find_spec(name) is None]
        if missing:
            _log.warning(
                "console_package_missing", package=missing[0], next=install_hint("console")
            )
        if self._plan.is_in_clear:
            _log.warning(
                "console_unencrypted",
                next=(
                    "passwords are sent unencrypted, unless a TLS proxy is in front of the health "
                    "listener"
                ),
            )

    async def take(self, request: bytes, connection: int) -> str:
        """Pass a connection on. request: the data read from it. connection: its file descriptor,
        which the caller closes afterwards.

        Return the reason why the console cannot accept it; empty on success.
        """
        if len(request) > REQUEST_BYTES_MAX:
            return f"a request to the console begins with more than {REQUEST_BYTES_MAX:,} bytes"
        if self._waiting >= WAITING_MAX:
            return "the console is starting; try again in a moment"
        self._waiting += 1
        try:
            async with self._starting:
                channel = await self._running()
        finally:
            self._waiting -= 1
        if isinstance(channel, str):
            return channel
        try:
            socket.send_fds(channel, [request], [connection])
        except BlockingIOError:
            return "the console is busy; try again in a moment"
        except OSError as error:
            return f"the console does not take connections: {error.strerror}"
        return ""

    async def stop(self) -> None:
        process = self._process
        self._forget()
        if process is not None and process.poll() is None:
            process.terminate()
            await asyncio.to_thread(_ended, process)

    async def _running(self) -> socket.socket | str:
        """Return the channel to the process, which is started if necessary, or the reason why it
        cannot start.
        """
        if self._process is not None and self._process.poll() is None:
            assert self._channel is not None
            return self._channel
        now = asyncio.get_running_loop().time()
        if now - self._started_at < RESTART_S:
            return "the console has ended; the log of this node says why. Try again in a moment."
        self._forget()
        if missing := [name for name in _MODULES if find_spec(name) is None]:
            return f"the package {missing[0]} is missing: {install_hint('console')}"
        self._started_at = now
        try:
            self._channel, self._process = self._start()
        except OSError as error:
            return f"the console cannot start: {error}"
        _log.info("console_started", pid=self._process.pid)
        if await self._is_ready(self._channel, self._process):
            return self._channel
        status = self._process.poll()
        _log.error("console_failed", status=status)
        await self.stop()
        return "the console did not start; the log of this node says why"

    def _start(self) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
        """Start the process. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: S603 - our own modules, no shell
                    self._command(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr,
                    env=self._environment | {lifeline.PARENT_VARIABLE: str(os.getpid())},
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours, process

    def _command(self, number: int) -> tuple[str, ...]:
        program = (sys.executable, "-P", "-m", "penstock.deploy.cli", "console")
        return (*program, "--fd", str(number), *self._plan.arguments)

    async def _is_ready(self, channel: socket.socket, process: "subprocess.Popen[bytes]") -> bool:
        """Wait until the process accepts connections. Return False if it exits first or takes too
        long.
        """
        loop = asyncio.get_running_loop()
        said = asyncio.Event()
        loop.add_reader(channel, said.set)
        try:
            async with asyncio.timeout(START_S):
                while not said.is_set() and process.poll() is None:
                    try:
                        async with asyncio.timeout(_LOOK_S):
                            await said.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(channel)
        return said.is_set() and channel.recv(len(READY)) == READY

    def _forget(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = self._process = None


def _ended(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
