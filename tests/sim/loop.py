"""asyncio on virtual time, with processes that can be stopped, resumed and killed at any callback.

Time advances only when nothing is ready, and tasks hash by serial number, so a run depends only on
its seed. Every task belongs to the process that created it: a paused process runs nothing, and a
dead one never runs again. Source: FoundationDB's simulator.
"""

import asyncio
import contextvars
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any

_TIMER_DELAY_S = 1e-6


class SimDeadlock(Exception):
    """Nothing is ready and no timer is set, so waiting tasks would wait forever."""


class Process:
    """One start of a broker or a controller. `held` contains the callbacks that could not run
    because it is stopped.
    """

    def __init__(self, name: str, link: str = "") -> None:
        """link: its name in the network, shared by all starts at one address; default: the name."""
        self.name = name
        self.link = link or name
        self.held: list[_Handle] | None = None
        self.dead = False
        self._context = contextvars.Context()
        self._context.run(PROCESS.set, self)

    @property
    def paused(self) -> bool:
        return self.held is not None and not self.dead

    def context(self) -> contextvars.Context:
        """Return a new context of this process, for one task or callback."""
        return self._context.copy()

    def pause(self) -> None:
        if self.held is None:
            self.held = []

    def resume(self, loop: "VirtualLoop") -> None:
        if not self.dead:
            self._release(loop)

    def kill(self) -> None:
        """Kill it as SIGKILL does. Its remaining callbacks are kept only to clean up the run in
        order.
        """
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


class _Handle:
    """`asyncio.Handle` and `TimerHandle`, as far as tasks, futures and timeouts use them."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class _Timer(_Handle):
    __slots__ = ("_when",)

    def when(self) -> float:
        return self._when


class SimFuture(asyncio.Future):
    def __hash__(self) -> int:
        return self._serial


class SimTask(asyncio.Task):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, serial: int, **options: Any) -> None:
        self._serial = serial
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._serial


class VirtualLoop(base_events.BaseEventLoop):
    """Has its own queue and heap, because a run spends most of its time here."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        self._serials = 0
        super().__init__()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._waiting: deque[_Handle] = deque()
        self.steps = 0

    def time(self) -> float:
        return self._virtual_s

    def get_debug(self) -> bool:
        return False

    def make_ready(self, handles: list[_Handle]) -> None:
        self._waiting.extend(handles)

    def create_future(self) -> SimFuture:
        future = SimFuture(loop=self)
        self._serials += 1
        future._serial = self._serials
        return future

    def create_task(
        self, coroutine: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> Any:
        self._serials += 1
        return SimTask(coroutine, serial=self._serials, loop=self, name=name, context=context)

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = _Handle(callback, args, context)
        self._waiting.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_at(self._virtual_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = _Timer(callback, args, context)
        handle._when = when
        self._serials += 1
        heappush(self._timers, (when, self._serials, handle))
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run the function immediately, because nothing may run in another thread. The executor of
        a simulated disk takes its virtual time.
        """
        if executor is not None:
            return executor.begin(func, *args)
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def close(self) -> None:
        self._waiting.clear()
        self._timers.clear()
        super().close()

    def _run_once(self) -> None:
        waiting, timers = self._waiting, self._timers
        while not self._stopping:
            if not waiting:
                self._advance()
            now_s = self._virtual_s
            while timers and timers[0][0] <= now_s:
                waiting.append(heappop(timers)[2])
            self._run_waiting(len(waiting))

    def _run_waiting(self, count: int) -> None:
        """Run callbacks that are ready now; those added meanwhile run after the timers."""
        waiting = self._waiting
        self.steps += count
        for _ in range(count):
            handle = waiting.popleft()
            if handle.is_cancelled:
                continue
            context = handle.context
            process = context.get(PROCESS)
            if process is not None and process.held is not None:
                process.held.append(handle)
                continue
            try:
                context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler(
                    {"message": f"exception in {handle.callback!r}", "exception": error}
                )

    def _advance(self) -> None:
        """Advance to the next timer and slightly further, as real clocks do. Otherwise a timer that
        fires too early by rounding and sets itself again would stop the time.
        """
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heappop(timers)
        if not timers:
            raise SimDeadlock(f"nothing can ever happen after {self._virtual_s:.6f} s")
        self._virtual_s = max(self._virtual_s, timers[0][0]) + _TIMER_DELAY_S

    def _asyncgen_finalizer_hook(self, _: Any) -> None:
        """Do not close abandoned generators. The garbage collector determines when that happens, so
        the run would depend on it.
        """

    def _process_events(self, _: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
