"""Check a release before it is published: `make release-check`.

Build sdist and wheel, compare the wheel with that of the sdist, run twine on both, and install each
extra into an empty environment with each Python on this machine for a smoke test. `--pinned`
installs the versions of constraints.txt instead of the newest ones.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from penstock.base.extras import DISTRIBUTION

ROOT: Final = Path(__file__).resolve().parents[1]
UV: Final = Path(sys.executable).with_name("uv")
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_TIMEOUT_S: Final = 900
_NAMES_MAX: Final = 5
_ENVIRONMENT: Final = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "PYTEST_", "PENSTOCK_", "VIRTUAL_ENV"))
}
_SCAN: Final = (
    "-c",
    "import sys, penstock; assert penstock.scan(sys.argv[1], 'orders').to_table().num_rows == 3",
    "{store}",
)
_SPARK: Final = (
    "-c",
    (
        "import sys; from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "orders = spark.read.format('penstock').option('store', sys.argv[1])\n"
        "assert orders.option('subscribe', 'orders').load().count() == 3"
    ),
    "{store}",
)
_TABLE: Final = ("table", "sync", "orders", "--store", "{store}", "--warehouse", "tables", "--once")
_SQL: Final = ("sql", "SELECT count(*) FROM orders", "--store", "{store}")
_DEMO: Final = (
    "import kafka, matplotlib; from penstock.deploy.demo.flights import read_flights\n"
    "assert len(list(read_flights(3))) == 3"
)
_SCHEMAS: Final = ("avro", "json_schema", "protobuf")
EXTRAS: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "": (),
    "console": (("python", "-c", "import penstock.deploy.console.application"),),
    "schemas": tuple(("python", "-c", f"import penstock.broker.schemas.{x}") for x in _SCHEMAS),
    "local": (("penstock", *_SQL), ("python", *_SCAN)),
    "reader": (("python", *_SCAN),),
    "sql": (("penstock", *_SQL), ("python", *_SCAN)),
    "table": (("penstock", *_TABLE),),
    "spark": (("python", *_SPARK),),
    "traces": (("python", "-c", "import penstock.deploy.node.traces.export"),),
    "demo": (("python", "-c", _DEMO),),
}
"""Commands of the smoke test besides a cluster, by extra; `{store}` is the cluster's store."""


class CheckFailed(Exception):
    """Raised if a step of the check fails. The message contains its output."""


@dataclass(frozen=True, slots=True)
class Row:
    """One environment in the table."""

    python: str
    extra: str
    size_mb: int
    packages: int
    seconds: float
    problem: str


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release_check", allow_abbrev=False)
    parser.add_argument(
        "--pinned", action="store_true", help="install the versions pinned in constraints.txt"
    )
    parser.add_argument("--extras", default="", help="checks to run, separated by commas")
    given = parser.parse_args()
    pins = ("-c", str(ROOT / "constraints.txt")) if given.pinned else ()
    extras = given.extras.split(",") if given.extras else list(EXTRAS)
    with tempfile.TemporaryDirectory(prefix="penstock-release-") as name:
        directory = Path(name)
        try:
            wheel = build(directory)
            _say(f"{wheel.name}: the wheel of the sdist is the same, and twine accepts both")
        except CheckFailed as error:
            sys.exit(f"error: {error}")
        rows = list(_rows(wheel, extras, pins, directory))
    _say(f"\n{'python':8}{'extra':10}{'MB':>6}{'packages':>10}{'seconds':>9}  result")
    for row in rows:
        _say(
            f"{row.python:8}{row.extra or '(none)':10}{row.size_mb:6}{row.packages:10}"
            f"{row.seconds:9.1f}  {'failed' if row.problem else 'ok'}"
        )
    failed = [row for row in rows if row.problem]
    for row in failed:
        _say(f"\n{row.python} {row.extra or '(none)'}: {row.problem}")
    sys.exit(bool(failed))


def build(directory: Path) -> Path:
    """Build and check the distributions; return the wheel. Raises CheckFailed."""
    from_tree, both = directory / "tree", directory / "dist"
    _run(UV, "build", "--quiet", "--wheel", "--out-dir", from_tree, ROOT)
    _run(UV, "build", "--quiet", "--out-dir", both, ROOT)  # the wheel is built from the sdist
    wheels = [next(folder.glob("*.whl")) for folder in (from_tree, both)]
    contents = [{item.filename: item.CRC for item in ZipFile(wheel).infolist()} for wheel in wheels]
    if different := sorted({name for name, _ in contents[0].items() ^ contents[1].items()}):
        names = ", ".join(different[:_NAMES_MAX])
        raise CheckFailed(
            f"the sdist builds another wheel: {len(different)} files, such as {names}"
        )
    _run(UV, "tool", "run", "twine", "check", "--strict", *both.glob("penstock*"))
    return wheels[1]


def _rows(
    wheel: Path, extras: Sequence[str], pins: Sequence[str], directory: Path
) -> Iterator[Row]:
    for version in PYTHONS:
        found = subprocess.run(  # noqa: S603 - our own command
            (UV, "python", "find", "--no-python-downloads", version),
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode:
            _say(f"skipped Python {version}: it is not on this machine")
            continue
        for extra in extras:
            where = directory / "environment"
            try:
                yield _checked(wheel, version, extra, pins, where)
            finally:
                shutil.rmtree(where, ignore_errors=True)


def _checked(wheel: Path, python: str, extra: str, pins: Sequence[str], where: Path) -> Row:
    _say(f"Python {python}, {extra or 'no extra'} ...")
    began, size_mb, packages, problem = time.monotonic(), 0, 0, ""
    try:
        _run(UV, "venv", "--quiet", "--no-python-downloads", "--python", python, where)
        wanted = f"{DISTRIBUTION}[{extra}] @ {wheel.as_uri()}"
        _run(UV, "pip", "install", "--quiet", "--python", where / "bin/python", *pins, wanted)
        size_mb = sum(file.stat().st_size for file in where.rglob("*") if file.is_file()) >> 20
        packages = len(list(where.glob("lib/*/site-packages/*.dist-info")))
        smoke_test(where / "bin", extra)
    except CheckFailed as error:
        problem = str(error)
    return Row(python, extra, size_mb, packages, time.monotonic() - began, problem)


def smoke_test(binaries: Path, extra: str) -> None:
    """Run a cluster with three records, and the commands of the extra. Raises CheckFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-smoke-") as name,
        _cluster(binaries, Path(name), "moto" if extra in {"local", "demo"} else "file:data") as at,
    ):
        directory, given = Path(name), ("--bootstrap", at["bootstrap"])
        (directory / "orders.txt").write_text("1\n2\n3\n")
        for command in (
            ("topics", "create", "orders"),
            ("produce", "orders", "--from-file", "orders.txt"),
            ("consume", "orders", "--from-beginning", "--until-end"),
        ):
            shown = _run(binaries / "penstock", *command, *given, cwd=directory)
        if shown.split() != ["1", "2", "3"]:
            raise CheckFailed(f"consumed {shown!r}")
        for program, *arguments in EXTRAS[extra]:
            texts = [text.replace("{store}", at["store"]) for text in arguments]
            _run(binaries / program, *texts, cwd=directory, path=binaries)


@contextmanager
def _cluster(binaries: Path, directory: Path, store: str) -> Generator[Mapping[str, str]]:
    """Run `penstock dev`; yield the addresses of its ready line."""
    options = ("--brokers", "1", "--port", "0", "--state-file", "state.json", "--store", store)
    with (
        (directory / "log").open("w+") as log,
        subprocess.Popen(  # noqa: S603 - our own command
            (binaries / "penstock", "dev", *options),
            cwd=directory,
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            if not line.startswith("ready: "):
                log.seek(0)
                raise CheckFailed(f"penstock dev did not start: {line}{log.read()}")
            parts = (part.partition("=") for part in line.split())
            yield {key: value for key, _, value in parts}
        finally:
            process.send_signal(signal.SIGINT)


def _run(*command: str | Path, cwd: Path = ROOT, path: Path | None = None) -> str:
    """Return the output of the command. path: a folder that is searched first for programs, as in
    an active environment. Raises CheckFailed.
    """
    search = {"PATH": os.pathsep.join([str(path), _ENVIRONMENT["PATH"]])} if path else {}
    done = subprocess.run(  # noqa: S603 - our own commands
        command,
        cwd=cwd,
        env=_ENVIRONMENT | search,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise CheckFailed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
