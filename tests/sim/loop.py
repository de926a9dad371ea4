"""asyncio on virtual time, with processes that can be stopped, resumed and killed between any two callbacks.

Invariants: time moves only when nothing is ready, straight to the next timer, so a run depends on its seed alone; tasks and futures hash
by their serial number, so that sets of them have the same order in every run; nothing runs in another thread; "no timer and no ready task" is an
error. Every task belongs to the process in whose context it was made: a paused process runs nothing (as after SIGSTOP, time goes on without
it), a dead one never runs again. Must not know what is simulated. Source: style.md section 6; FoundationDB's simulator.
"""

import asyncio
import contextvars
from asyncio import base_events, events
from collections.abc import Callable, Coroutine
from heapq import heappush
from math import ulp
from typing import Any

_TIMER_DELAY_S = 1e-6


class SimDeadlock(Exception):
    """Nothing is ready and no timer is set: whoever waits would wait for ever."""


class Process:
    """Something with a life of its own: a broker start, a controller start. `held` is what could not run because it is stopped."""

    def __init__(self, name: str, link: str = "") -> None:
        """link: what the network knows it by; the same for all starts at one address, else the name."""
        self.name = name
        self.link = link or name
        self.held: list[events.Handle] | None = None
        self.dead = False
        self._context = contextvars.Context()
        self._context.run(PROCESS.set, self)

    @property
    def paused(self) -> bool:
        return self.held is not None and not self.dead

    def context(self) -> contextvars.Context:
        """A new context of this process, for one task or callback."""
        return self._context.copy()

    def pause(self) -> None:
        if self.held is None:
            self.held = []

    def resume(self, loop: "VirtualLoop") -> None:
        if not self.dead:
            self._release(loop)

    def kill(self) -> None:
        """As SIGKILL. What it would still have done is kept only so that the run can be cleaned up in order."""
        self.pause()
        self.dead = True

    def dispose(self, loop: "VirtualLoop") -> None:
        self._release(loop)

    def _release(self, loop: "VirtualLoop") -> None:
        held, self.held = self.held, None
        loop.make_ready(held or [])


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("PROCESS", default=None)


def process_name() -> str:
    process = PROCESS.get()
    return "-" if process is None else process.name


def _held(handle: events.Handle) -> bool:
    process: Process | None = handle._context.get(PROCESS)
    if process is None or process.held is None:
        return False
    process.held.append(handle)
    return True


class _Handle(events.Handle):
    def _run(self) -> None:
        if not _held(self):
            super()._run()


class _TimerHandle(events.TimerHandle):
    def _run(self) -> None:
        if not _held(self):
            super()._run()


class SimFuture(asyncio.Future):
    def __hash__(self) -> int:
        return self._serial


class SimTask(asyncio.Task):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, serial: int, **options: Any) -> None:
        self._serial = serial
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._serial


class _Selector:
    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise SimDeadlock(f"nothing can ever happen after {self._loop.time():.6f} s")
        if timeout > 0:
            self._loop.advance()
        return []


class VirtualLoop(base_events.BaseEventLoop):
    def __init__(self) -> None:
        self._virtual_s = 0.0
        self._serials = 0
        super().__init__()
        self._selector = _Selector(self)
        self.steps = 0
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._virtual_s

    def advance(self) -> None:
        """To the next timer and a little further, as real clocks are when a timer runs: one that finds itself early, by rounding, and
        sets itself again must not stop the time."""
        self._virtual_s = max(self._virtual_s, self._scheduled[0]._when) + _TIMER_DELAY_S

    @property
    def _clock_resolution(self) -> float:
        return ulp(self._virtual_s)

    @_clock_resolution.setter
    def _clock_resolution(self, _: float) -> None:
        pass

    def make_ready(self, handles: list[events.Handle]) -> None:
        self._ready.extend(handles)

    def create_future(self) -> SimFuture:
        future = SimFuture(loop=self)
        self._serials += 1
        future._serial = self._serials
        return future

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        self._check_closed()
        timer = _TimerHandle(when, callback, args, self, context)
        heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """The simulated disk's executor takes its virtual time. Nothing may run in another thread: what only computes runs at once."""
        if executor is not None:
            return executor.begin(func, *args)
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def _call_soon(self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None) -> events.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        self.steps += 1
        return handle

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> SimTask:
        self._serials += 1
        return SimTask(coroutine, serial=self._serials, loop=loop, **options)

    def _process_events(self, _: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
