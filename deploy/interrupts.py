"""Record Ctrl-C in a flag: Python drops exceptions, including KeyboardInterrupt, that are raised
during object cleanup.
"""

import signal
import threading
from types import TracebackType
from typing import NoReturn, Self


class Interrupts:
    """Use it as a context manager in a command, and call `check` in each step of its loop. Outside
    of the main thread, which alone handles signals, it has no effect.
    """

    def __init__(self) -> None:
        self._is_pending = False

    def __enter__(self) -> Self:
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._previous = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, where: TracebackType | None, /
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """Raise KeyboardInterrupt if the one of the last Ctrl-C was dropped."""
        if self._is_pending:
            raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> NoReturn:
        self._is_pending = True
        raise KeyboardInterrupt
