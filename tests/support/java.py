"""Run Java programs with the jars of Kafka 4.2: its command line tools, and applications. Maven
downloads the jars once (`benchmarks/kafka.py`).
"""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.kafka import LIGHT_JVM, jars
from tests.support.waiting import PATIENCE_S, wait_until

TOOL_TIMEOUT_S = PATIENCE_S
APPLICATION_TIMEOUT_S = PATIENCE_S
JVM = ("java", *LIGHT_JVM, "-Xmx256m")
_LOG4J = """
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ABSOLUTE} %p %c{1} %m%n
rootLogger.level=ERROR
rootLogger.appenderRef.out.ref=out
"""


class JavaHome:
    """A directory with compiled classes and logging settings, placed before Kafka's jars in the
    class path.
    """

    def __init__(self, directory: Path) -> None:
        (directory / "log4j2.properties").write_text(_LOG4J)
        self.directory = directory
        self.class_path = f"{directory}:{jars()}"

    def compile(self, source: Path) -> None:
        command = ["javac", "-cp", self.class_path, "-d", str(self.directory), str(source)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr

    def tool(
        self, main: str, *arguments: str, jvm: Sequence[str] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command line tool until it exits. jvm: additional JVM options."""
        return subprocess.run(
            (*JVM, *jvm, "-cp", self.class_path, main, *arguments),
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )

    def application(
        self, main: str, *arguments: str, log: Path
    ) -> "AbstractContextManager[subprocess.Popen[bytes]]":
        """Run an application; kill it at the end if it is still running. Its output is added to
        `log`.
        """
        return running(*JVM, "-cp", self.class_path, main, *arguments, log=log)


@contextmanager
def running(*command: str, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a process; kill it at the end if it is still running. Its output is added to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_while_running(
    process: "subprocess.Popen[bytes]", log: Path, condition: Callable[[], bool]
) -> None:
    """Wait for a condition while an application runs; show its log if it exits early."""

    def is_over() -> bool:
        assert process.poll() is None, log.read_text()
        return condition()

    try:
        wait_until(is_over, APPLICATION_TIMEOUT_S)
    except TimeoutError:
        raise AssertionError(log.read_text()[-10_000:]) from None
