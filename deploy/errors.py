"""Define the errors of the command line.

Invariant: every expected failure is an ExpectedError, either from this module or from the Kafka
client. The message contains the value, the allowed values and a remedy. Exit codes: 0 success, 1
failure, 2 wrong usage, 4 a node cannot listen on its port.
"""

import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import ClassVar, Final

from penstock.base.errors import ExpectedError
from penstock.base.listening import EXIT_NOT_LISTENING
from penstock.base.printable import printable

PORT_MAX: Final = 65_535
_LISTED_MAX: Final = 20


class UsageError(ExpectedError):
    """A flag, variable, key or value is not valid."""

    exit_code: ClassVar[int] = 2


class Missing(UsageError):
    """A requested resource does not exist, or was deleted."""


class UnknownSetting(UsageError):
    """There is no setting with this name. source: flag, variable or file that contains the name."""

    def __init__(self, key: str, source: str, known: Sequence[str]) -> None:
        near = get_close_matches(key, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else _listed(known)
        super().__init__(f"{source}: unknown setting {key!r}; {hint}")
        self.key = key


def _listed(known: Sequence[str]) -> str:
    if len(known) > _LISTED_MAX:
        return "docs/reference/configuration.md lists the settings"
    return f"known are: {', '.join(known)}"


class PortTaken(ExpectedError):
    """Another process listens on the port."""

    def __init__(self, host: str, port: int, flag: str) -> None:
        super().__init__(
            f"port {port} on {host} is taken by another process; stop it, or choose another"
            f" port with {flag} (0: any free port)"
        )
        self.port = port
        self.flag = flag


class NotListening(ExpectedError):
    """A node cannot listen on its port."""

    exit_code: ClassVar[int] = EXIT_NOT_LISTENING


class ClusterFailed(ExpectedError):
    """A local cluster did not start, or lost a process that it needs."""


class NoController(ExpectedError):
    """The metadata cannot be read: the controller's address is unknown, or it does not respond."""


class Busy(ExpectedError):
    """Too many requests are pending; a later request may be served."""


def print_error(error: Exception | str) -> None:
    """Print an error on stderr. Non-printable characters are escaped, and all lines after the first
    are indented, so that none of them looks like another message.
    """
    text = printable(str(error), kept="\n").replace("\n", "\n  ")
    print(f"error: {text}", file=sys.stderr)


def check_utf_8(text: str, what: str) -> None:
    """Raise UsageError for an argument or a variable that is not UTF-8: Python decodes such bytes
    as surrogates, which clients cannot encode. what: the name of the argument or variable.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        raise UsageError(f"{what} is not UTF-8: '{shown}'") from None


def check_port(flag: str, port: int) -> None:
    """Raise UsageError for an invalid port. 0 means any free port."""
    if not 0 <= port <= PORT_MAX:
        raise UsageError(f"{flag} {port} is not allowed: 0 to {PORT_MAX}")


def near_hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with names similar to an unknown name, or `otherwise`."""
    near = get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
