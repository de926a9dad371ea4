"""The log levels of this process, which administrators can change at runtime.

Loggers are packages, as in Kafka's `LoggingController`. A module uses the level of the nearest
enclosing package with a level, otherwise the root level. Levels are not persistent.
"""

from typing import Final

LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
"""Kafka's level names, with Python's level numbers."""

ROOT: Final = "root"
AUDIT: Final = "audit"
"""The logger of the audit log. It has no level: its entries are always written."""


class LogLevels:
    def __init__(self) -> None:
        self._own = {ROOT: "INFO"}

    def set(self, logger: str, level: str) -> None:
        """Set the level of a logger. level: a key of LEVELS."""
        self._own[logger] = level

    def unset(self, logger: str) -> None:
        """Make a logger inherit its level. This has no effect on the root logger."""
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
"""The levels of this process."""
