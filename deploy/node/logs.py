"""Configure the logs of processes: one line per event on stderr, as text on a terminal, as JSON
elsewhere.

The level of a line is compared when it is logged, because administrators can change the levels of
loggers in a running broker (`base.log_levels`).
Invariant: called once, before the first log line. Must not import rich: structlog would use it for
tracebacks, which are not printed, and each start of a broker would take 6 MB and 0.17 s more.
"""

import logging
import sys
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final

from base import log_levels

LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
"""The values of the setting, with the names of `log_levels.LEVELS`."""

_LEVEL_OF_METHOD: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def keep_rich_out() -> None:
    """Make later imports of rich fail."""
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None is what blocks an import; typeshed does not know


def configure(level: str, *, name: str = "") -> None:
    """Configure the logs of a node. level: a key of LEVELS. name: the process's name on a terminal
    shared by several.
    """
    keep_rich_out()
    to_stderr(level)
    if name:
        import structlog

        structlog.contextvars.bind_contextvars(process=name)


def to_stderr(level: str) -> None:
    """Configure the logs of a command that prints tables with rich."""
    import structlog

    from base.log import NamedOutput

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
            structlog.dev.ConsoleRenderer(pad_event_to=24)
            if for_people
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=partial(NamedOutput, sys.stderr),
        cache_logger_on_first_use=True,
    )


def _drop_below_level(
    logger: Any,  # noqa: ANN401 - as structlog passes it
    method: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    """Drop lines below the level of their logger. Raises DropEvent, which structlog expects."""
    level = log_levels.LEVELS[log_levels.LOG_LEVELS.of(getattr(logger, "name", ""))]
    if _LEVEL_OF_METHOD.get(method, logging.NOTSET) < level:
        import structlog

        raise structlog.DropEvent
    return event
