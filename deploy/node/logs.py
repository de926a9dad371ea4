"""Configure the logs of processes: one line per event on stderr, as text on a terminal and as JSON
elsewhere.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from functools import partial
from importlib import import_module
from textwrap import indent
from typing import Any, Final

from penstock.base import log_levels
from penstock.base.printable import printable, printable_value

LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
"""Names in `log_levels.LEVELS`, by value of the setting."""

_TRACEBACK: Final = "exception"
_INDENT: Final = "    "
_LEVEL_OF_METHOD: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def keep_rich_out() -> None:
    """Make imports of rich fail."""
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None is what blocks an import; typeshed does not know


def import_structlog() -> None:
    """Import structlog without rich, which the command may import later. Call this before importing
    modules that log: `penstock dev --store memory`, whose nodes are in its process, needs 4 MB
    less.
    """
    if "rich" in sys.modules:
        return
    keep_rich_out()
    import_module("structlog")
    del sys.modules["rich"]


def configure(level: str, *, name: str = "") -> None:
    """Configure the logs of a node. level: a key of LEVELS. name: the process's name on a terminal
    shared by several.

    The level is compared for each line, because administrators can change the levels of a running
    broker (`base.log_levels`). Invariants: text from clients is escaped, so it can neither control
    a terminal nor forge a line: in JSON, everything but ASCII is escaped, and in text, every
    non-printable character. Called once, before the first log line. This must not import rich:
    structlog would use it for tracebacks, and each broker would take 6 MB more and start 0.17 s
    later.
    """
    keep_rich_out()
    # gRPC reads this when it is imported. Otherwise it would write a line for each failed
    # handshake, and anyone could fill the disk.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    to_stderr(level)
    if name:
        import structlog

        structlog.contextvars.bind_contextvars(process=name)


def to_stderr(level: str) -> None:
    """Configure the logs of a command that prints tables with rich."""
    import structlog

    from penstock.base.log import NamedOutput

    for_people = sys.stderr.isatty()
    log_levels.LOG_LEVELS.set(log_levels.ROOT, LEVELS[level])
    structlog.configure(
        processors=[
            _drop_below_level,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(
                fmt="%H:%M:%S" if for_people else "iso", utc=not for_people
            ),
            structlog.processors.format_exc_info,
            *(_for_people() if for_people else _for_programs()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=partial(NamedOutput, sys.stderr),
        cache_logger_on_first_use=True,
    )


def _for_people() -> list[Any]:
    from structlog.dev import ConsoleRenderer

    return [_escape, ConsoleRenderer(pad_event_to=24)]


def _for_programs() -> list[Any]:
    from structlog.processors import JSONRenderer

    return [JSONRenderer()]


def _escape(
    _logger: Any,  # noqa: ANN401 - as structlog passes it
    _method: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    """Escape non-printable characters. Tracebacks keep their lines, indented, so that no line of an
    error looks like a log line.
    """
    for name, value in event.items():
        if name == _TRACEBACK and isinstance(value, str):
            event[name] = indent(printable(value, kept="\n"), _INDENT)
        else:
            event[name] = printable_value(value)
    return event


def _drop_below_level(
    logger: Any,  # noqa: ANN401 - as structlog passes it
    method: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    """Drop lines below the level of their logger, except for the audit log. Raises DropEvent, which
    structlog expects.
    """
    name = getattr(logger, "name", "")
    if name == log_levels.AUDIT:
        return event
    level = log_levels.LEVELS[log_levels.LOG_LEVELS.of(name)]
    if _LEVEL_OF_METHOD.get(method, logging.NOTSET) < level:
        import structlog

        raise structlog.DropEvent
    return event
