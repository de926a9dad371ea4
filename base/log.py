"""Loggers for modules that programs import as a library, where stdout belongs to the program.

structlog prints to stdout until it is configured. These loggers use the configured output, as in
nodes and commands. In a program that has not configured structlog, warnings and errors are written
to stderr, and all other lines are dropped.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO

import structlog

_SHOWN: Final = frozenset(
    {"warn", "warning", "error", "err", "exception", "critical", "fatal", "failure"}
)
"""Methods that write to stderr in a program that has not configured structlog."""


class NamedOutput(structlog.PrintLogger):
    """Writes the lines of a named logger. If a line cannot be written, because the disk is full or
    a pipe is closed, it is dropped, so that the logging code does not fail.
    """

    def __init__(self, file: TextIO, name: str = "") -> None:
        super().__init__(file)
        self.name = name

    def msg(self, message: str) -> None:
        """Write a line."""
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _Output:
    """Chooses the output for each line, because a program may configure structlog after importing
    this module.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("__"):
            raise AttributeError(method)
        if structlog.is_configured():
            output = structlog.get_config()["logger_factory"](self.name)
            configured: Callable[..., Any] = getattr(output, method)
            return configured
        return getattr(NamedOutput(sys.stderr), method) if method in _SHOWN else _nothing


def get_logger(name: str) -> Any:  # noqa: ANN401 - as structlog.get_logger: its class is a matter of configuration
    """Return a logger for the library module of this name. Use it like a logger of
    `structlog.get_logger`.
    """
    return structlog.wrap_logger(_Output(name))


def _nothing(*_: object, **__: object) -> None:
    """Discard a line."""
