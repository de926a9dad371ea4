"""Configure the logs of processes: one line per event on stderr, as text on a terminal, as JSON
elsewhere.

Invariant: called once, before the first log line. Must not import rich: structlog would use it for
tracebacks, which are not printed, and each start of a broker would take 6 MB and 0.17 s more.
"""

import logging
import sys
from typing import Final

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
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

    for_people = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(
                fmt="%H:%M:%S" if for_people else "iso", utc=not for_people
            ),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(pad_event_to=24)
            if for_people
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
