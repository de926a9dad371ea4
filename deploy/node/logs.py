"""Logging of processes: one line per fact on stderr; for people on a terminal, as JSON anywhere
else.

Invariant: called once, before the first log line. Must not import rich: structlog would take it
along for tracebacks that we do not print, which costs a broker 6 MB and a sixth of a second at each
start.
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
    """Make `import rich` fail from here on, if it was not imported yet."""
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None is what blocks an import; typeshed does not know


def configure(level: str, *, name: str = "") -> None:
    """level: a key of LEVELS. name: what this process is called in a terminal that several write
    to.
    """
    keep_rich_out()
    to_stderr(level)
    if name:
        import structlog

        structlog.contextvars.bind_contextvars(process=name)


def to_stderr(level: str) -> None:
    """For commands that print tables: rich stays."""
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
