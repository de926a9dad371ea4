"""pytest configuration for all tests: ignored deprecation warnings of client libraries, no deadline
for examples of property tests, a shared Spark home, and short garbage collections.
"""

import faulthandler
import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import hypothesis
import pytest
import structlog

from tests.support.cpu_seconds import CpuSeconds


def pytest_addoption(parser: pytest.Parser) -> None:
    listed = "list the files and shared fixtures that use most CPU seconds"
    parser.addoption("--cpu-files", type=int, default=0, metavar="COUNT", help=listed)


def pytest_configure(config: pytest.Config) -> None:
    # kafka-python reads its schemas with functions that Python 3.11 deprecates and 3.13 no longer
    # does.
    config.addinivalue_line(
        "filterwarnings", r"ignore:(read|open)_text is deprecated:DeprecationWarning"
    )
    # Some tests run commands in this process and read stdout, which must not contain a cluster's
    # log.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    os.environ["SPARK_CONF_DIR"] = str(Path(__file__).with_name("support") / "spark")
    # By default an example may take 0.2 s, and its data 0.1 s, which busy machines can exceed.
    hypothesis.settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("untimed")
    os.environ["SPARK_HOME"] = str(_unzipped_spark())
    # A job in the background of a script ignores Ctrl-C, and so would the commands under test.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(CpuSeconds(listed_count=config.getoption("cpu_files")))


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from later garbage collections. Otherwise each would take
    0.3 s of CPU, and every simulator run ends with one.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Print the stacks of all threads and exit with status 1 if this process is still running after
    900 s. Python waits at its end without a limit for each thread that a failed test left running,
    and frees all modules, which took more than 60 s on a machine with a load average of 20.
    """
    faulthandler.dump_traceback_later(900, exit=True, file=sys.__stderr__)


@pytest.fixture(autouse=True)
def _logs_stay_configured() -> Iterator[None]:
    """Restore the log configuration, because commands that run in this process send logs to a
    stderr that ends with their test.
    """
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def _unzipped_spark() -> Path:
    """Return a Spark home without PySpark's zip, so that the installed package is used. From the
    zip, each Python process of a query compiles all its imports again: 0.5 s of CPU.

    It consists of links into the virtual environment and is kept, because a killed test run could
    not remove it.
    """
    home = Path(sys.prefix) / "spark-home" / version("pyspark")
    if home.exists():
        return home
    home.parent.mkdir(exist_ok=True)
    made = Path(mkdtemp(dir=home.parent))
    _link_spark(made)
    with suppress(OSError):  # another process was faster
        made.rename(home)
    shutil.rmtree(made, ignore_errors=True)
    return home


def _link_spark(home: Path) -> None:
    installed = find_spec("pyspark")
    assert installed is not None, "tests need what `make venv` installs"
    assert installed.origin is not None
    root = Path(installed.origin).resolve().parent
    library = home / "python" / "lib"
    library.mkdir(parents=True)
    for path in (*root.glob("*"), *root.glob("python/lib/py4j-*.zip")):
        target = library if path.suffix == ".zip" else home
        if path.name != "python":
            (target / path.name).symlink_to(path)
