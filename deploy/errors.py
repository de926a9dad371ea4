"""What the command line tells its user when it can not do what was asked.

Invariant: every expected failure ends as one of these, printed as one `error:` line, never as a traceback. The message says which value,
what is allowed and what to do. Exit codes: 0 done, 1 it failed, 2 it was called wrongly.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import ClassVar


class DeployError(Exception):
    """Base; the text is what the user reads."""

    exit_code: ClassVar[int] = 1


class UsageError(DeployError):
    """A flag, variable, key or value that can not be."""

    exit_code: ClassVar[int] = 2


class UnknownSetting(UsageError):
    """A key that no setting has. `source` says where it stands: a flag, a variable, a file."""

    def __init__(self, key: str, source: str, known: Sequence[str]) -> None:
        near = get_close_matches(key, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
        super().__init__(f"{source}: unknown setting {key!r}; {hint}")
        self.key = key


class PortTaken(DeployError):
    """Somebody else listens there."""

    def __init__(self, host: str, port: int, flag: str) -> None:
        super().__init__(
            f"port {port} on {host} is taken by another process; stop it, or choose another one with {flag} (0: any free port)"
        )
        self.port = port


class ClusterFailed(DeployError):
    """A local cluster that did not start, or lost a process that it can not do without."""


class NoController(DeployError):
    """The metadata can not be read because nobody says where the controller is, or it does not answer."""


class KafkaFailed(DeployError):
    """The brokers did not answer, or refused."""
