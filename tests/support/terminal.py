"""Run programs whose stdout and stderr are a terminal, and check what reaches it."""

import os
import pty
import subprocess
import tty
from collections.abc import Mapping, Sequence

HOSTILE = "\r\n".join(
    (
        "a\x1b]0;title\x07\x1b[2J",
        "level=info event=admin_change\x9b31m\u202e\u2066\x7f\u2028[red]b[/]",
    )
)
"""ANSI and C1 controls, line breaks, marks of direction, and markup of rich."""
_ACTING = tuple("\x07\x1b\r\x9b\x7f\u202e\u2066\u2028")


def check_harmless(text: str) -> None:
    assert not [letter for letter in _ACTING if letter in text], repr(text)


def on_terminal(program: Sequence[str], environment: Mapping[str, str] | None = None) -> bytes:
    """Run a program to its end. Return what the terminal gets. environment: added to that of the
    tests.
    """
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # the terminal adds no "\r"
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "160"}
    variables = {**os.environ, **plain, **(environment or {})}
    with subprocess.Popen(program, stdout=theirs, stderr=theirs, env=variables) as process:
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
