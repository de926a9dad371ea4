"""SIGQUIT prints the stacks of a process, even if its event loop hangs."""

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

CODE = """
import asyncio, time
import uvloop
from penstock.base.stacks import dump_stacks_on_quit

async def waits_for_ever():
    await asyncio.Event().wait()

async def main():
    dump_stacks_on_quit(asyncio.get_running_loop())
    task = asyncio.get_running_loop().create_task(waits_for_ever(), name="the patient one")
    await asyncio.sleep(0)
    print("ready", flush=True)
    HOW
    await task

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def told(how: str, until: bytes) -> str:
    """Return the stderr of the process after the signal, up to `until`."""
    code = CODE.replace("HOW", how)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGQUIT)
        found = b""
        while until not in found:
            line = process.stderr.readline()
            assert line, found.decode()
            found += line
        assert process.poll() is None, "it continues"
        return found.decode()
    finally:
        process.kill()
        process.communicate()


def test_tasks_are_printed_with_what_they_wait_for() -> None:
    lines = told("pass", b"Event.wait").splitlines()
    at = lines.index("task the patient one:")
    assert lines[at + 1].startswith("  waits_for_ever (<string>:")
    assert lines[at + 2].startswith("  Event.wait (")


def test_the_stack_of_a_hanging_event_loop_is_printed() -> None:
    assert "in main" in told("time.sleep(1_000)", b"in main")
