"""Run Kafka's command line tools one after another in the same JVM (`tests/interop/tools`)."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support.java import JVM, JavaHome

SOURCE = Path(__file__).parent.parent / "interop" / "tools" / "ToolRunner.java"
_OPENED = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
_FIELD, _LINE = "\x1f", "\x1e"


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a tool. output: stdout and stderr, in the order of writing."""

    exit_code: int
    output: str


class ToolRunner:
    """The JVM. A hanging tool ends with the test's timeout, which kills the JVM."""

    def __init__(self, commands: IO[bytes], responses: IO[bytes]) -> None:
        self._commands, self._responses = commands, responses

    def run(self, main: str, arguments: Sequence[str], *, stdin: str = "") -> Done:
        """Run a tool until it exits."""
        line = _FIELD.join((main, stdin, *arguments)).replace("\n", _LINE)
        self._commands.write(line.encode() + b"\n")
        self._commands.flush()
        exit_code, length = self._responses.readline().split()
        return Done(int(exit_code), self._responses.read(int(length)).decode())


@contextmanager
def tool_runner(java: JavaHome) -> Iterator[ToolRunner]:
    java.compile(SOURCE)
    process = subprocess.Popen(
        (*JVM, *_OPENED, "-cp", java.class_path, "ToolRunner"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        yield ToolRunner(process.stdin, process.stdout)
    finally:
        process.kill()
        process.communicate()
