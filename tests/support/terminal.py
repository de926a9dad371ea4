"""Run programs whose stdout and stderr are a terminal, and check their output."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
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
"""ANSI and C1 control characters, line breaks, direction marks, and rich markup."""
_ACTING = tuple("\x07\x1b\r\x9b\x7f\u202e\u2066\u2028")


_WAIT_S = PATIENCE_S


def check_harmless(text: str) -> None:
    assert not [letter for letter in _ACTING if letter in text], repr(text)


def on_terminal(program: Sequence[str], environment: Mapping[str, str] | None = None) -> bytes:
    """Run a program until it exits. Return its terminal output. environment: added to that of the
    tests.
    """
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # the terminal does not add "\r"
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "160"}
    variables = {**os.environ, **plain, **(environment or {})}
    started = subprocess.Popen(program, stdout=theirs, stderr=theirs, env=variables)
    with killed_at_end(started) as process:
        os.close(theirs)
        got = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # on Linux, if the other end is closed
                break
            if not part:
                break
            got += part
        os.close(ours)
        assert process.wait() == 0, got
    return got


class Terminal:
    """A program on a pseudo-terminal, with input typed by the test."""

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
        """Read until the pattern appears in the output since the last call, and return
        that output.
        """
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


def on_a_terminal(
    bootstrap: str, *command: str, steps: tuple[tuple[str, bytes], ...], stdout: Path | None = None
) -> str:
    """Run `penstock` on a terminal, and type each text when the preceding output appears. Return
    the output.

    stdout: a file for it instead of the terminal.
    """
    main, child = pty.openpty()
    arguments = [sys.executable, "-m", "penstock", *command, "--bootstrap", bootstrap]
    with open(stdout or os.devnull, "wb") as file:
        started = subprocess.Popen(
            arguments,
            stdin=child,
            stdout=file if stdout else child,
            stderr=child,
            start_new_session=True,
        )
    with killed_at_end(started) as process:
        os.close(child)
        shown = ""
        try:
            for expected, typed in (*steps, ("", b"")):
                at = len(shown) if not expected else 0
                while expected not in shown[at:] or not expected:
                    ready, _, _ = select.select([main], [], [], PATIENCE_S)
                    assert ready, f"nothing follows {shown!r}"
                    try:
                        shown += os.read(main, 4_096).decode()
                    except OSError:  # the process has ended
                        return shown
                if typed == b"\x03":
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(main, typed)
        finally:
            os.close(main)
    return shown
