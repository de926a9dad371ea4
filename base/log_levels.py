"""Hold the levels of the loggers of this process, which administrators change while it runs.

A logger has the name of a package. A module uses the level of the nearest package around it that
has one, else that of the root. Nodes in one process share the levels. Nothing stores them.
Source: the loggers of log4j, as Kafka's `LoggingController` shows them.
"""

from typing import Final

LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
"""Kafka's names, in the numbers of Python."""

ROOT: Final = "root"
AUDIT: Final = "audit"
"""The logger of the audit log. It has no level: its lines are always written."""


class LogLevels:
    def __init__(self) -> None:
        self._own = {ROOT: "INFO"}

    def set(self, logger: str, level: str) -> None:
        """Set the level of a logger. level: a key of LEVELS."""
        self._own[logger] = level

    def unset(self, logger: str) -> None:
        """Let a logger use the level of what is around it. The root keeps its own."""
        if logger != ROOT:
            self._own.pop(logger, None)

    def of(self, name: str) -> str:
        """Return the level of a logger or a module."""
        while name:
            if name in self._own:
                return self._own[name]
            name = name.rpartition(".")[0]
        return self._own[ROOT]


LOG_LEVELS: Final = LogLevels()
"""Of this process."""
