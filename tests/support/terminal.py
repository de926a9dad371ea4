"""Run programs whose stdout and stderr are a terminal, and check what reaches it."""

import os
import pty
import re
import select
import subprocess
import time
import tty
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.child_process import killed_at_end
from tests.support.waiting import PATIENCE_S

HOSTILE = "\r\n".join(
    (
        "a\x1b]0;title\x07\x1b[2J",
        "level=info event=admin_change\x9b31m\u202e\u2066\x7f\u2028[red]b[/]",
    )
)
"""ANSI and C1 controls, line breaks, marks of direction, and markup of rich."""
_ACTING = tuple("\x07\x1b\r\x9b\x7f\u202e\u2066\u2028")


_WAIT_S = PATIENCE_S


def check_harmless(text: str) -> None:
    assert not [letter for letter in _ACTING if letter in text], repr(text)


def on_terminal(program: Sequence[str], environment: Mapping[str, str] | None = None) -> bytes:
    """Run a program to its end. Return its terminal output. environment: added to that of the
    tests.
    """
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # the terminal adds no "\r"
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "160"}
    variables = {**os.environ, **plain, **(environment or {})}
    started = subprocess.Popen(program, stdout=theirs, stderr=theirs, env=variables)
    with killed_at_end(started) as process:
        os.close(theirs)
        got = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            got += part
        os.close(ours)
        assert process.wait() == 0, got
    return got


class Terminal:
    """A program on a pseudo-terminal, with input that the test types."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str]) -> None:
        """environment: added to that of the tests."""
        self._fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            program,
            env={**os.environ, "TERM": "dumb", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, pattern: str) -> str:
        """Read until the pattern appears in what came since the last call, and return that."""
        deadline = time.monotonic() + _WAIT_S
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self._fd, 65_536).decode()
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def cpu_ticks(self) -> int:
        """Return the CPU time of the process."""
        return sum(map(int, Path(f"/proc/{self.process.pid}/stat").read_text().split()[13:15]))
