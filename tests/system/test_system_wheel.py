"""The wheel alone, as `pip install` gives it to a user without the checkout: the command, the
cluster, the pytest plugin.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "PYTEST_", "PENSTOCK_", "VIRTUAL_ENV"))
}

PRODUCE_AND_CONSUME = """
import sys
import penstock
from penstock import broker, controller, deploy, objectstore, stream, testing
ours = (broker, controller, deploy, objectstore, penstock, stream, testing)
assert {module.__file__.startswith(sys.prefix) for module in ours} == {True}
from confluent_kafka import Producer
from penstock.testing.client import KafkaClient
client = KafkaClient(sys.argv[1])
client.create_topic("orders", 2, {}, 10)
producer = Producer({"bootstrap.servers": sys.argv[1]})
for number in range(100):
    producer.produce("orders", str(number), partition=number % 2)
assert producer.flush(10) == 0
print(sorted(int(record.text) for record in client.consume("orders", 100, 10)) == list(range(100)))
"""

TESTS = """
from penstock.testing import Penstock

def test_a_record(penstock: Penstock):
    penstock.topic("orders", 2)
    penstock.produce("orders", "1")
    penstock.kill_broker(0)
    assert [record.text for record in penstock.consume("orders", 1)] == ["1"]
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=CLEAN, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a fresh virtual environment with the wheel and pytest, from uv's cache. Return its
    `bin`.
    """
    directory = tmp_path_factory.mktemp("wheel")
    run(
        UV,
        "build",
        "--quiet",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        directory,
        ROOT,
        cwd=directory,
    )
    (wheel,) = directory.glob("penstock-*.whl")
    run(UV, "venv", "--quiet", "--python", sys.executable, directory / "env", cwd=directory)
    python = directory / "env" / "bin" / "python"
    run(
        UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "-c",
        ROOT / "constraints.txt",
        wheel,
        "pytest",
        cwd=directory,
    )
    return python.parent


@contextmanager
def dev(binaries: Path, directory: Path, store: str) -> Iterator[str]:
    """Run `penstock dev`; yield its ready line."""
    command = (
        binaries / "penstock",
        "dev",
        "--store",
        store,
        "--brokers",
        "1",
        "--port",
        "0",
        "--state-file",
        directory / "state.json",
    )
    process = subprocess.Popen(
        command, cwd=directory, env=CLEAN, stdout=subprocess.PIPE, text=True, process_group=0
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("store", ["memory", "file:data"])
def test_the_command_runs_a_cluster(environment: Path, tmp_path: Path, store: str) -> None:
    assert run(environment / "python", "-m", "penstock", "--version", cwd=tmp_path).startswith(
        "penstock "
    )
    with dev(environment, tmp_path, store) as line:
        assert line.startswith("ready: bootstrap=127.0.0.1:"), line
        bootstrap = line.split("bootstrap=")[1].split()[0]
        assert (
            run(environment / "python", "-c", PRODUCE_AND_CONSUME, bootstrap, cwd=tmp_path)
            == "True\n"
        )


def test_without_extras_each_command_says_what_to_type(environment: Path, tmp_path: Path) -> None:
    found = (
        "import importlib.util as u; print([name for name in ('boto3', 'flask', 'moto', 'pyarrow',"
        " 'pyspark') if u.find_spec(name)])"
    )
    assert run(environment / "python", "-c", found, cwd=tmp_path) == "[]\n"
    for arguments, told in (
        (
            ("penstock", "dev"),
            (
                'needs the package moto: pip install ".[local]" in a checkout of Penstock, or'
                " choose another store: --store memory"
            ),
        ),
        (("penstock", "demo"), 'pip install ".[demo]" in a checkout of Penstock'),
        (
            ("python", "-c", "from penstock import scan"),
            'penstock.scan needs the package pyarrow: pip install ".[reader]"',
        ),
        (
            ("python", "-c", "import penstock.spark as s; s.register(None)"),
            'pip install ".[spark]"',
        ),
    ):
        done = subprocess.run(
            [environment / arguments[0], *arguments[1:]],
            cwd=tmp_path,
            env=CLEAN,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert told in " ".join((done.stdout + done.stderr).split())


def test_pytest_finds_the_plugin_by_itself(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    assert "1 passed" in run(
        environment / "python", "-m", "pytest", "-q", "-W", "error", cwd=tmp_path
    )
