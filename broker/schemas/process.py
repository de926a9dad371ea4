"""Run the worker process, and send it one request at a time."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Final, NamedTuple

import structlog
from msgspec import MsgspecError

from penstock.broker.schemas import messages
from penstock.broker.schemas.messages import FRAME_BYTES, Request, Verdict

RESPONSE_S: Final = 20.0
"""Timeout for a response, far above the CPU limit of the worker, because the machine may be
busy.
"""
PAUSE_S: Final = 1.0
"""Pause after a process has ended for a reason other than its limits."""
_END_S: Final = 5.0
_VERDICT_BYTES_MAX: Final = 1 << 20
LIMIT_SIGNALS: Final = frozenset(
    {signal.SIGPROF, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL}
)
"""Signals that terminate a process that has exhausted its CPU, stack or memory."""
_KEPT_VARIABLES: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "HOME")
_log = structlog.get_logger(__name__)


class _Waiting(NamedTuple):
    request: Request
    done: "asyncio.Future[Verdict]"


class CheckProcess:
    """The worker process of a broker, started with the first request.

    A request that exceeds the worker's limits fails with TOO_SLOW, and a new process is started for
    the next request. Topics take turns, so a topic with slow checks delays each batch of another
    topic by at most one batch. The caller must limit the number of waiting requests.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        """Waiting requests by topic, in the order in which the topics are served."""
        self._task: asyncio.Task[None] | None = None
        self._worker: _Worker | None = None
        self._paused_until_s = 0.0

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._end_worker()

    async def call(self, topic: str, request: Request) -> Verdict:
        """Return the verdict. topic: the request waits for the turn of this topic."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future())
        self._lanes.setdefault(topic, deque()).append(waiting)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return await waiting.done

    async def _run(self) -> None:
        while self._lanes:
            topic, lane = self._lanes.popitem(last=False)
            waiting = lane.popleft()
            if lane:
                self._lanes[topic] = lane
            if waiting.done.cancelled():
                continue
            verdict = await self._request_verdict(waiting.request)
            if not waiting.done.cancelled():
                waiting.done.set_result(verdict)

    async def _request_verdict(self, request: Request) -> Verdict:
        now_s = asyncio.get_running_loop().time
        if now_s() < self._paused_until_s:
            return Verdict(messages.UNAVAILABLE, "the process that checks records has failed")
        try:
            if self._worker is None:
                self._worker = await _Worker.start()
            async with asyncio.timeout(RESPONSE_S):
                return await self._worker.send_request(request)
        except (OSError, EOFError, TimeoutError, MsgspecError) as error:
            status = await self._end_worker()
            if status is not None and -status in LIMIT_SIGNALS:
                _log.warning("schema_worker_exited", signal=signal.Signals(-status).name)
                return Verdict(messages.TOO_SLOW)
            self._paused_until_s = now_s() + PAUSE_S
            _log.error("schema_worker_failed", status=status, error=repr(error))
            return Verdict(messages.UNAVAILABLE, "the process that checks records has failed")

    async def _end_worker(self) -> int | None:
        """End the process. Return its exit status, or None if there was no process."""
        worker, self._worker = self._worker, None
        return None if worker is None else await worker.end()


class _Worker:
    """One worker process. It exits when its socket is closed; any temporary files that it left
    behind are then removed.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        directory: str | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """directory: for temporary files; None if it could not be created."""
        self._process, self._reader, self._writer = process, reader, writer
        self._directory = directory

    @classmethod
    async def start(cls) -> "_Worker":
        """Start a worker process. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            directory = await asyncio.to_thread(temporary_directory)
            process = await asyncio.to_thread(spawned, theirs, directory=directory)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(process, directory, *await asyncio.open_connection(sock=ours))

    async def send_request(self, request: Request) -> Verdict:
        """Send a request, and return the verdict. Raises OSError, EOFError, MsgspecError."""
        data = messages.encode(request)
        self._writer.write(len(data).to_bytes(FRAME_BYTES, "big"))
        self._writer.write(data)
        await self._writer.drain()
        size = int.from_bytes(await self._reader.readexactly(FRAME_BYTES), "big")
        if size > _VERDICT_BYTES_MAX:
            raise EOFError(f"a verdict has {size} bytes")
        return messages.decode_verdict(await self._reader.readexactly(size))

    async def end(self) -> int:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        return await asyncio.to_thread(self._ended)

    def _ended(self) -> int:
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            remove(self._directory)


def temporary_directory() -> str | None:
    """Create a directory for temporary files of a worker. The caller removes it after the worker
    has ended, because a killed worker cannot. Return None if it cannot be created; only .proto
    files need it.
    """
    try:
        return tempfile.mkdtemp(prefix="penstock-schema-")
    except OSError:
        return None


def spawned(
    connection: socket.socket,
    module: str = "penstock.broker.schemas.worker",
    *,
    directory: str | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a worker without the secrets in this process's environment. connection: its standard
    input. directory: for its temporary files; removed if the worker cannot be started.
    """
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    if directory is not None:
        kept["TMPDIR"] = directory
    try:
        return subprocess.Popen(  # noqa: S603 - our own modules, no shell
            [sys.executable, "-P", "-m", module],
            stdin=connection.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=kept,
        )
    except BaseException:
        remove(directory)
        raise


def remove(directory: str | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
