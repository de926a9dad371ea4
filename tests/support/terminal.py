"""Run `penstock` on a terminal, as a user types."""

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.child_process import killed_at_end
from tests.support.waiting import PATIENCE_S


def on_a_terminal(
    bootstrap: str, *command: str, steps: tuple[tuple[str, bytes], ...], stdout: Path | None = None
) -> str:
    """Run `penstock` on a terminal, and type each text after the output that it follows. Return the
    output. stdout: a file for it instead of the terminal.
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
