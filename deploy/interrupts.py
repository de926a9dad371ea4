"""Record Ctrl-C in a flag: Python drops exceptions, including KeyboardInterrupt, that are raised
during object cleanup.
"""

import signal
import threading
from types import TracebackType
from typing import NoReturn, Self


class Interrupts:
    """Use it as a context manager in a command, and call `check` in each step of its loop. It has
    no effect outside of the main thread, which alone handles signals, nor if Ctrl-C is ignored, as
    in background jobs of shell scripts.
    """

    def __init__(self) -> None:
        self._is_pending = False

    def __enter__(self) -> Self:
        default = signal.default_int_handler
        is_main = threading.current_thread() is threading.main_thread()
        self._is_installed = is_main and signal.getsignal(signal.SIGINT) is default
        if self._is_installed:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, where: TracebackType | None, /
    ) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt again if Python dropped it."""
        if self._is_pending:
            raise KeyboardInterrupt

    def _interrupt(self, *_: object) -> NoReturn:
        self._is_pending = True
        raise KeyboardInterrupt
