"""The wheel as `pip install` installs it, without the checkout: the command, the cluster, the
pytest plugin, and all of them next to user modules named like the folders of this repository.
"""

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from zipfile import ZipFile

import pytest

from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
UV = Path(sys.executable).with_name("uv")
CONSTRAINTS = ("-c", ROOT / "constraints.txt")
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
client.create_topic("orders", 2, {}, 180)
producer = Producer({"bootstrap.servers": sys.argv[1]})
for number in range(100):
    producer.produce("orders", str(number), partition=number % 2)
assert producer.flush(180) == 0
print(sorted(int(record.text) for record in client.consume("orders", 100, 180)) == list(range(100)))
"""

TESTS = """
from penstock.testing import Penstock

def test_a_record(penstock: Penstock):
    penstock.topic("orders", 2)
    penstock.produce("orders", "1")
    penstock.kill_broker(0)
    assert [record.text for record in penstock.consume("orders", 1)] == ["1"]
"""


THEIRS = {f"penstock/{name}": "" for name in ("__init__.py", "_config.py", "backends/__init__.py")}
"""Files of the unrelated PyPI project `penstock`."""

THEIR_MODULES = ("base.py", "stream.py")
THEIR_PACKAGES = ("broker", "controller", "deploy", "lake", "objectstore", "protocol", "tests")

READ = """
import sys
from penstock import scan, sql
store = sys.argv[1]
counted = sql("SELECT count(*) FROM orders", store=store)
print(scan(store, "orders").to_table().num_rows, counted.rows())
"""

SPARK_JOB = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
orders = spark.read.format("penstock").option("store", sys.argv[1]).option("subscribe", "orders")
print("rows:", orders.load().count())
"""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=CLEAN | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(directory: Path, *options: str) -> Path:
    """Build a wheel of the checkout and return it."""
    building = ("--quiet", "--no-build-isolation", "--python", sys.executable, *options)
    run(UV, "build", *building, "--out-dir", directory, ROOT, cwd=directory)
    (built,) = directory.glob("penstock_streams-*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel built from the sdist."""
    return build(tmp_path_factory.mktemp("wheel"))


def install(directory: Path, *packages: str | Path) -> Path:
    """Create a virtual environment with the packages, from uv's cache. Return its `bin`."""
    run(UV, "venv", "--quiet", "--python", sys.executable, directory / "env", cwd=directory)
    python = directory / "env" / "bin" / "python"
    options = ("--quiet", "--python", python, *CONSTRAINTS)
    run(UV, "pip", "install", *options, *packages, cwd=directory)
    return python.parent


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("plain"), wheel, "pytest")


@pytest.fixture
def with_extras(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install only the wheel. The dependencies of all extras come from the test environment,
    because installing Spark alone would take a minute. Return its `bin`.
    """
    binaries = install(tmp_path_factory.mktemp("extras"), "--no-deps", wheel)
    (packages,) = binaries.parent.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return binaries


@pytest.fixture(scope="module")
def with_pytest(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with only the wheel and pytest, for copying. A first pytest run has
    compiled the modules.
    """
    directory = tmp_path_factory.mktemp("pytest")
    python = install(directory, "--no-deps", wheel) / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, *CONSTRAINTS, "pytest", cwd=directory)
    (directory / "test_x.py").write_text("def test_x(): pass")
    assert "1 passed" in run(python, "-m", "pytest", "-q", "test_x.py", cwd=directory)
    return directory / "env"


@pytest.fixture
def project_of_a_user(tmp_path: Path) -> Path:
    """Return a directory with user modules named like the folders of this repository, each of which
    fails on import.
    """
    theirs = [*THEIR_MODULES, *(f"{name}/__init__.py" for name in THEIR_PACKAGES)]
    for name in theirs:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"raise RuntimeError('{name} of the user was imported')")
    return tmp_path


def give_wheel(name: str, files: Mapping[str, str], directory: Path) -> Path:
    """Write a wheel of another project that contains these files."""
    wheel = directory / f"{name}-0.1.0-py3-none-any.whl"
    about = f"{name}-0.1.0.dist-info"
    metadata = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, *metadata, f"{about}/RECORD"))
    with ZipFile(wheel, "w") as archive:
        for path, text in {**files, **metadata, f"{about}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


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
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("store", ["memory", "file:data"])
def test_installed_command_runs_a_cluster(environment: Path, tmp_path: Path, store: str) -> None:
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


def test_command_without_its_extra_prints_the_install_command(
    environment: Path, tmp_path: Path
) -> None:
    found = (
        "import importlib.util as u; print([name for name in ('boto3', 'flask', 'moto', 'pyarrow',"
        " 'pyspark') if u.find_spec(name)])"
    )
    assert run(environment / "python", "-c", found, cwd=tmp_path) == "[]\n"
    for arguments, message in (
        (
            ("penstock", "dev"),
            (
                'needs the package moto: pip install "penstock-streams[local]", or choose another'
                " store: --store memory"
            ),
        ),
        (("penstock", "demo"), 'pip install "penstock-streams[demo]"'),
        (
            ("penstock", "produce", "orders", "--format", "avro", "--schema", __file__),
            'the package fastavro is missing: pip install "penstock-streams[schemas]"',
        ),
        (
            ("python", "-c", "from penstock import scan"),
            'penstock.scan needs the package pyarrow: pip install "penstock-streams[reader]"',
        ),
        (
            ("python", "-c", "import penstock.spark as s; s.register(None)"),
            'pip install "penstock-streams[spark]"',
        ),
    ):
        done = subprocess.run(
            [environment / arguments[0], *arguments[1:]],
            cwd=tmp_path,
            env=CLEAN,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 1
        assert message in " ".join((done.stdout + done.stderr).split())


def test_pytest_discovers_the_plugin(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    assert "1 passed" in run(
        environment / "python", "-m", "pytest", "-q", "-W", "error", cwd=tmp_path
    )


def test_sdist_contains_all_sources_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    from_checkout = build(tmp_path, "--wheel")
    contents = [
        {item.filename: item.CRC for item in ZipFile(built).infolist()}
        for built in (wheel, from_checkout)
    ]
    assert contents[0] == contents[1]


def test_wheel_has_two_top_level_packages_and_no_development_files(wheel: Path) -> None:
    """tests/tidy/test_tidy_packages.py checks that each module of the wheel is used."""
    names = [name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"penstock", "pyspark_penstock"}
    data = {name for name in names if not name.endswith((".py", "/py.typed"))}
    pages = tuple(
        f"penstock/deploy/{part}/" for part in ("console/static", "console/templates", "demo")
    )
    assert {name for name in data if not name.startswith(pages)} == {
        f"penstock/{path.relative_to(ROOT)}" for path in (ROOT / "protocol").rglob("*.so")
    }


def test_pypi_page_has_no_relative_links(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        page = archive.read(name).decode()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 5
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.costly("a fresh environment compiles all that it imports")
def test_user_modules_may_share_names_with_repository_folders(
    with_extras: Path, project_of_a_user: Path
) -> None:
    binaries, place = with_extras, project_of_a_user
    (place / "read.py").write_text(READ)
    (place / "job.py").write_text(SPARK_JOB)
    (place / "test_plain.py").write_text("def test_plain(): pass")
    (place / "test_records.py").write_text(TESTS)
    with dev(binaries, place, "file:data") as line:
        bootstrap, store = (line.split(f"{key}=")[1].split()[0] for key in ("bootstrap", "store"))
        given = ("--bootstrap", bootstrap)
        run(binaries / "penstock", "topics", "create", "orders", *given, cwd=place)
        (place / "orders.txt").write_text("1\n2\n3\n")
        produce = ("produce", "orders", "--from-file", "orders.txt", *given)
        run(binaries / "penstock", *produce, cwd=place)
        consume = ("consume", "orders", "--from-beginning", "--until-end", *given)
        assert run(binaries / "penstock", *consume, cwd=place).splitlines() == ["1", "2", "3"]
        # A script, `-c` and `-m` each add the user's directory to the path.
        for python in (("read.py",), ("-c", READ)):
            assert run(binaries / "python", *python, store, cwd=place) == "3 [(3,)]\n"
        assert run(binaries / "python", "-m", "penstock", "--version", cwd=place)
        job = ("--master", "local[1]", "--py-files", "base.py", "job.py", store)
        submit = Path(sys.executable).with_name("spark-submit")
        shown = run(submit, *job, cwd=place, PYSPARK_PYTHON=str(binaries / "python"))
        assert "rows: 3" in shown
    for test in ("test_plain.py", "test_records.py"):
        tested = run(binaries / "python", "-m", "pytest", "-q", test, cwd=place)
        assert "1 passed" in tested


def outcome(*command: str | Path, cwd: Path) -> tuple[int, str]:
    """Return the exit code of a command, and its output with whitespace collapsed."""
    done = subprocess.run(
        command, cwd=cwd, env=CLEAN, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).replace("│", " ").split())


def test_conflict_with_the_other_penstock_package_is_reported(wheel: Path, tmp_path: Path) -> None:
    """In either order of installation, and after one of them was uninstalled."""
    needed = "pip uninstall -y penstock penstock-streams && pip install penstock-streams"
    theirs = give_wheel("penstock", THEIRS, tmp_path)
    binaries = install(tmp_path, wheel)
    python, command = binaries / "python", binaries / "penstock"
    pip = (UV, "pip", "install", "--quiet", "--python", python, "--no-deps", "--reinstall")
    run(*pip, theirs, cwd=tmp_path)
    for arguments in (("doctor",), ("dev",), ("broker",), ("--version",)):
        assert outcome(command, *arguments, cwd=tmp_path) == (
            1,
            f"error: {binaries.parent}/lib/{PYTHON}/site-packages/penstock/__init__.py belongs to"
            " another project. The package penstock on PyPI is another project, and one"
            f" environment cannot have both. Type: {needed}",
        )
    run(*pip, wheel, cwd=tmp_path)
    for arguments in ((python, "-c", "import penstock"), (command, "doctor")):
        code, shown = outcome(*arguments, cwd=tmp_path)
        assert code == 1
        assert "contains files of another project: _config.py, backends." in shown
        assert shown.endswith(needed)
    run(UV, "pip", "uninstall", "--quiet", "--python", python, "penstock", cwd=tmp_path)
    code, shown = outcome(command, "doctor", cwd=tmp_path)
    assert (code, "penstock/__init__.py is missing" in shown) == (1, True), shown
    uninstall = ("uninstall", "--quiet", "--python", python, "penstock-streams")
    run(UV, "pip", *uninstall, cwd=tmp_path)
    run(*pip, wheel, cwd=tmp_path)
    assert outcome(command, "--version", cwd=tmp_path) == (0, "penstock 0.1.0")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("nothing, but no dependency is installed", "No module named"),
        ("the project has a package penstock", "finds another package with this name first"),
        ("the other penstock was installed later", ""),
        ("the other penstock was installed before", "files of another project"),
        ("the other penstock fails", "RuntimeError: theirs"),
        ("the other penstock was removed", ""),
        ("a module is missing", "No module named 'penstock.testing.options'"),
        ("a module is damaged", "SyntaxError"),
    ],
)
def test_damaged_installation_does_not_break_tests_without_the_plugin(
    wheel: Path, with_pytest: Path, tmp_path: Path, broken: str, reason: str
) -> None:
    """No dependency is installed, because loading the plugin requires none."""
    binaries = copytree(with_pytest, tmp_path / "env", symlinks=True) / "bin"
    python = binaries / "python"
    pip = (UV, "pip", "install", "--quiet", "--python", python)
    (packages,) = binaries.parent.glob("lib/python*/site-packages")
    files = THEIRS | (
        {"penstock/__init__.py": "raise RuntimeError('theirs')"} if "fails" in broken else {}
    )
    if "other penstock" in broken:
        theirs = give_wheel("penstock", files, tmp_path)
        again = (*pip, "--no-deps", "--reinstall")
        run(*again, theirs, cwd=tmp_path)
        if "before" in broken:
            run(*again, wheel, cwd=tmp_path)
        elif "removed" in broken:
            run(UV, "pip", "uninstall", "--quiet", "--python", python, "penstock", cwd=tmp_path)
    elif "missing" in broken:
        (packages / "penstock/testing/options.py").unlink()
    elif "damaged" in broken:
        (packages / "penstock/testing/options.py").write_text("def")
    project = tmp_path / "project"
    project.mkdir()
    if "project" in broken:
        (project / "penstock").mkdir()
        (project / "penstock/__init__.py").write_text("raise RuntimeError('imported too early')")
    (project / "test_theirs.py").write_text("def test_theirs(): pass")
    (project / "test_ours.py").write_text("def test_ours(penstock): pass")
    tests = (python, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert "1 passed" in run(*tests, "test_theirs.py", cwd=project)
    code, shown = outcome(*tests, cwd=project)
    assert (code, "1 passed, 1 error" in shown) == (1, True), shown
    assert reason in shown


def page_of(url: str) -> str:
    with urlopen(url, timeout=PATIENCE_S) as page:
        return page.read().decode()


@pytest.mark.costly("a fresh environment compiles all that it imports")
def test_extra_local_suffices_for_the_first_hour(wheel: Path, tmp_path: Path) -> None:
    """Covers the cluster with its S3 server, and the pages and commands that read its records."""
    binaries = install(tmp_path, f"penstock-streams[local] @ {wheel.as_uri()}")
    (packages,) = binaries.parent.glob("lib/python*/site-packages")
    assert not {"numba", "cfnlint", "pyspark"} & {path.name for path in packages.iterdir()}
    with dev(binaries, tmp_path, "moto") as line:
        address = dict(part.partition("=")[::2] for part in line.split()[1:])
        given = ("--bootstrap", address["bootstrap"])
        (tmp_path / "flights.txt").write_text('{"carrier": "UA", "delay": 4}\n')
        run(binaries / "penstock", "topics", "create", "flights", *given, cwd=tmp_path)
        produce = ("produce", "flights", "--from-file", "flights.txt", *given)
        run(binaries / "penstock", *produce, cwd=tmp_path)
        query = "SELECT carrier, sum(delay) AS delays FROM flights GROUP BY carrier"
        sql = ("sql", query, "--output", "csv", "--store", address["store"])
        assert run(binaries / "penstock", *sql, cwd=tmp_path) == "carrier,delays\nUA,4\n"
        console = address["console"]
        # A page that takes longer than 0.2 s first appears as a skeleton.
        wait_until(lambda: "&#34;carrier&#34;" in page_of(f"{console}/topics/flights/messages"))
        with urlopen(f"{console}/sql", timeout=PATIENCE_S) as page:
            token = page.read().decode().split('name="csrf" value="')[1].split('"')[0]
        form = urlencode({"query": query, "csrf": token}).encode()
        requested = Request(f"{console}/sql", form, {"Origin": console})
        with urlopen(requested, timeout=PATIENCE_S) as page:
            assert "delays" in page.read().decode().split("</form>")[1]
