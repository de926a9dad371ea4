"""Handle the signals that end `penstock dev`, so that none of them interrupts its cleanup."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Self

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndingSignals:
    """Installs the handlers, in the main thread. After the `with` block, signals are ignored.

    Invariant: at most one signal raises KeyboardInterrupt, and only before the event loop handles
    signals; all later ones are passed to the event loop, or ignored. The handlers stay installed:
    between the end of the event loop and the end of the process, the default action would end the
    process before its files are removed.
    """

    def __init__(self) -> None:
        self._is_ending = False
        self._call: Callable[[], object] | None = None
        for number in ENDING:
            signal.signal(number, self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending = True

    @contextmanager
    def calling(self, call: Callable[[], None]) -> Generator[None]:
        """Call a function in the running event loop for each signal, instead of raising."""
        loop = asyncio.get_running_loop()
        # `loop.add_signal_handler` is not used, because the loop restores the default action when
        # it closes.
        self._call = lambda: loop.call_soon_threadsafe(call)
        try:
            yield
        finally:
            self._is_ending = True
            self._call = None

    def _handle(self, _number: int, _frame: object) -> None:
        if self._call is not None:
            self._call()
        elif not self._is_ending:
            self._is_ending = True
            raise KeyboardInterrupt
