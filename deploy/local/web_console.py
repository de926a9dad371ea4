"""Listen for the web console of a local cluster, and start its process with the first
connection.
"""

import asyncio
import socket
import subprocess
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from penstock.base.errors import ExpectedError
from penstock.deploy.errors import PortTaken
from penstock.deploy.local.supervisor import describe_end, start_process

HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9080
"""The preferred port. If it is taken, any free port is used, so that a second cluster can start as
well.
"""
RESTART_S: Final = 2.0
STOP_S: Final = 3.0
_BACKLOG: Final = 64
_MODULES: Final = ("jinja2", "starlette", "uvicorn")


def listen(port: int | None) -> socket.socket | None:
    """Return a listening socket, or None if the `console` extra is not installed. port: None for
    the default. Raises PortTaken.
    """
    if any(find_spec(name) is None for name in _MODULES):
        return None
    for candidate in (DEFAULT_PORT, 0) if port is None else (port,):
        try:
            listening = socket.create_server((HOST, candidate), backlog=_BACKLOG)
        except OSError:
            continue
        listening.setblocking(False)
        return listening
    raise PortTaken(HOST, port or 0, "--console-port")


class WebConsole:
    """Owns a listening socket and at most one process. Use it as a context manager within the event
    loop, after the state file has been written. is_secure: whether users must log in.

    Until the first connection, the console uses no process and no memory, and does not delay the
    ready line. Connections wait in the backlog of the socket for about a second, until the process
    has started. Invariant: the process ends with the cluster. If it dies, the next connection
    restarts it, at most once in `RESTART_S`.
    """

    def __init__(
        self,
        listening: socket.socket,
        state_path: Path,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        *,
        is_secure: bool,
    ) -> None:
        self._listening = listening
        self._state_path = state_path
        self._environment = environment
        self._say = say
        self._is_secure = is_secure
        self._process: subprocess.Popen[bytes] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._listening, self._start)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._listening)
        if self._watching is not None:
            self._watching.cancel()
        self._listening.close()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        number = self._listening.fileno()
        arguments = ("--state-file", str(self._state_path), "--fd", str(number))
        login = ("--login",) if self._is_secure else ()
        try:
            self._process = start_process(
                ("-m", "penstock.deploy.cli", "console", *arguments, *login),
                self._environment,
                (number,),
            )
        except OSError as error:
            raise ExpectedError(f"the console cannot start: {error}") from None
        self._watching = loop.create_task(self._watch(self._process))

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = await asyncio.to_thread(process.wait)
        self._say(f"console (pid {process.pid}) {describe_end(code)}")
        await asyncio.sleep(RESTART_S)
        asyncio.get_running_loop().add_reader(self._listening, self._start)
