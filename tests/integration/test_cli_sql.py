"""`penstock sql` as a process: statements, output formats, and the interactive prompt."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from tests.support.child_process import killed_at_end
from tests.support.cli import run_here
from tests.support.slow_store import slow_store
from tests.support.terminal import Terminal, on_terminal
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

ENDLESS = "SELECT sum(a.id * b.id * c.id * d.id) FROM orders a, orders b, orders c, orders d"
WAIT_S = PATIENCE_S


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(tmp_path_factory.mktemp("cluster"), brokers=1) as cluster:
        cluster.create("orders", 1)
        cluster.produce(
            {
                "topic": "orders",
                "value": json.dumps({"id": n, "who": f"a,\x1b{n}", "unit price": 3}).encode(),
            }
            for n in range(2_000)
        )
        yield cluster


@pytest.fixture(scope="module")
def store(cluster: ThreadedCluster) -> str:
    return cluster.store_url


SQL = (sys.executable, "-m", "penstock.deploy.cli", "sql")
_PRINT_MEMORY = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
MEASURED = (sys.executable, "-c", _PRINT_MEMORY, *SQL)
"""Runs the command, then prints the peak memory of its largest process in KiB. Measured in a
separate process, because the test process also has children of other tests.
"""


def run(store: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return run_here("sql", *arguments, given=given, PENSTOCK_STORE=store)


def run_alone(
    program: tuple[str, ...], store: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process."""
    variables = os.environ | {"PENSTOCK_STORE": store}
    command = (*program, *arguments)
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=WAIT_S)


def test_statements_print_rows_in_every_output_format(store: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    query = (
        "SELECT id, who, {'a': [id]} AS nested, NULL AS n, make_timestamp_ns(1) AS t FROM orders"
        " WHERE id < 2 ORDER BY id"
    )
    time = "1970-01-01 00:00:00.000000001"
    view = f"CREATE VIEW v AS {query}; SELECT * FROM v"
    done = run(store, "--csv", given=view)
    assert list(csv.reader(io.StringIO(done.stdout)))[1:] == [
        ["id", "who", "nested", "n", "t"],
        ["0", "a,\x1b0", '{"a": [0]}', "", time],
        ["1", "a,\x1b1", '{"a": [1]}', "", time],
    ], done.stderr
    done = run(store, query.replace("id, who", "id, id, who"), "--json")
    assert json.loads(done.stdout) == [
        {"id": 0, "id_1": 0, "who": "a,\x1b0", "nested": {"a": [0]}, "n": None, "t": time},
        {"id": 1, "id_1": 1, "who": "a,\x1b1", "nested": {"a": [1]}, "n": None, "t": time},
    ]
    done = run(store, query, "-o", "yaml")
    assert msgspec.yaml.decode(done.stdout) == [
        {"id": 0, "who": "a,\x1b0", "nested": {"a": [0]}, "n": None, "t": time},
        {"id": 1, "who": "a,\x1b1", "nested": {"a": [1]}, "n": None, "t": time},
    ]
    assert run(store, "SELECT id FROM orders WHERE id < 0", "-o", "yaml").stdout == "[]\n"
    both = run(store, query, "--json", "--parquet", str(file))
    assert (both.returncode, both.stdout) == (2, "")
    done = run(store, "SELECT id FROM orders", "--parquet", str(file))
    assert "wrote 2,000 rows" in done.stderr
    assert pq.read_table(file)["id"].to_pylist() == list(range(2_000))
    assert list(tmp_path.iterdir()) == [file]
    done = run(store, "SELECT id, who FROM orders", "--max-rows", "1")
    assert r"a,\x1b0" in done.stdout
    assert "only the first 1 row; --max-rows shows more" in done.stderr
    done = run(store, "SELECT * FROM order_", "--output=csv")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: no topic or view is named 'order_'; did you mean orders?\n"


@pytest.mark.parametrize("limit", ["", " LIMIT 0"])
def test_table_query_prints_values_in_the_same_form(store: str, tmp_path: Path, limit: str) -> None:
    statement = (
        "SELECT 'nan'::DOUBLE AS n, ['-inf'::DOUBLE, 1.5] AS l, '\\xFF'::BLOB AS b, 'a'::BLOB AS t,"
        " TIMESTAMPTZ '2026-01-31 12:00:00Z' AS ts, DATE '2026-01-31' AS d, 1.5::DECIMAL(9,2) AS m,"
        f" NULL AS z, 1 AS twice, 2 AS twice{limit}"
    )
    for output in ("json", "yaml", "csv"):
        form = ("--output", output)
        of_sql = run(store, statement, *form)
        of_table = run_here("table", "query", statement, "--warehouse", str(tmp_path), *form)
        assert (of_table.stdout, of_table.returncode) == (of_sql.stdout, 0), of_table.stderr
        assert ("nan" in of_table.stdout, "0xff" in of_table.stdout) == (not limit, not limit)


def test_protobuf_fields_are_columns(cluster: ThreadedCluster, tmp_path: Path) -> None:
    """The brokers validate the records with the same descriptor set."""
    text, number = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_INT64
    file = FileDescriptorProto(name="trip.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Trip")
    place = message.nested_type.add(name="Place")
    place.field.add(name="city", number=1, type=text, label=1)
    message.field.add(name="km", number=1, type=number, label=1)
    message.field.add(name="tags", number=2, type=text, label=3)
    message.field.add(name="to", number=3, type=11, type_name=".shop.Trip.Place", label=1)
    path = tmp_path / "trip.desc"
    path.write_bytes(FileDescriptorSet(file=[file]).SerializeToString())

    def penstock(*arguments: str, given: str = "") -> str:
        done = run_here(*arguments, "-b", cluster.bootstrap, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    configs = ("penstock.value.schema.type=protobuf", f"penstock.value.schema=@{path}")
    named = "penstock.value.schema.message=shop.Trip"
    penstock("topics", "create", "trips", *(f"--config={item}" for item in (*configs, named)))
    trips = [{"km": "42", "tags": ["a", "b"], "to": {"city": "Bern"}}, {"km": "7"}]
    penstock(
        *("produce", "trips", "--format", "protobuf", "--schema", str(path)),
        *("--message", "shop.Trip"),
        given="\n".join(map(json.dumps, trips)),
    )
    options = ("--schema", f"trips={path}", "--message", "trips=shop.Trip")
    wait_until(lambda: cluster.has("trips"))
    done = run(cluster.store_url, "DESCRIBE trips", *options, "--json")
    columns = {row["column_name"]: row["column_type"] for row in json.loads(done.stdout)}
    assert {name: columns[name] for name in ("km", "tags", "to")} == {
        "km": "BIGINT",
        "tags": "VARCHAR[]",
        "to": "STRUCT(city VARCHAR)",
    }
    query = 'SELECT km, tags, "to".city AS city, _offset FROM trips ORDER BY km'
    done = run(cluster.store_url, query, *options, "--json")
    assert json.loads(done.stdout) == [
        {"km": 7, "tags": [], "city": None, "_offset": 1},
        {"km": 42, "tags": ["a", "b"], "city": "Bern", "_offset": 0},
    ], done.stderr
    done = run(cluster.store_url, query, "--schema", f"trips={path}", "--message", "trips=Trip")
    assert "has no message 'Trip'; it has shop.Trip" in done.stderr


def test_progress_bar_shows_how_much_a_slow_statement_has_read(store: str) -> None:
    command = (sys.executable, "-m", "penstock.deploy.cli", "sql", "SELECT max(id) FROM orders")
    with slow_store(store) as url:
        shown = on_terminal(command, {"PENSTOCK_STORE": url, "TERM": "xterm"}).decode()
    with slow_store(store) as url:
        done = run(url, "SELECT max(id) FROM orders", "--output=csv")
    bar = re.search(r"read .*━.* 2000/2000 .*records", shown)
    assert bar, shown
    assert shown.index("max(id)") > bar.end()  # the bar is cleared before the rows are printed
    assert (done.stdout, done.stderr) == ("max(id)\n1999\n", "")


def test_fast_exit_reports_write_errors_and_removes_temporary_files(
    store: str, tmp_path: Path
) -> None:
    environment = os.environ | {"PENSTOCK_STORE": store, "TMPDIR": str(tmp_path)}
    environment.pop("PYTHONUNBUFFERED", None)  # so that output stays buffered until the exit
    command = (
        sys.executable,
        "-m",
        "penstock.deploy.cli",
        "sql",
        "SELECT max(id) FROM orders",
        "--output=csv",
    )
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, timeout=WAIT_S
        )
    assert done.returncode != 0
    assert b"No space left on device" in done.stderr
    done = subprocess.run(command, env=environment, capture_output=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"max(id)\n1999\n", b"")
    assert list(tmp_path.iterdir()) == []


def prompt(store: str, home: Path) -> Terminal:
    variables = {"PENSTOCK_STORE": store, "XDG_CACHE_HOME": str(home)}
    return Terminal(SQL, variables)


ENDLESS_CALL = "SELECT levenshtein(repeat('ab', 200000), repeat('ba', 200000))"
"""A single function call that computes for minutes without a cancellation check."""


def test_time_and_memory_limits_apply_within_one_function_call(store: str, tmp_path: Path) -> None:
    spill = ("--temp-directory", str(tmp_path))
    for query in (ENDLESS_CALL, ENDLESS):
        done = run_alone(SQL, store, query, "--max-seconds", "1", *spill)
        assert (done.returncode, done.stdout) == (1, "")
        assert "longer than its limit of time" in done.stderr
    for query in ("SELECT length(repeat('x', 2000000000))", "SELECT repeat('x', 1500000000)"):
        done = run_alone(MEASURED, store, query, "--memory-limit", "300MB", *spill)
        assert done.returncode == 1, done.stderr
        assert "emory" in done.stderr
        assert int(done.stdout) < 1_000_000, "KiB of the largest process"
    assert os.listdir(tmp_path) == []


def cpu_ticks(pid: int) -> int:
    """Return the user CPU time of a process in clock ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_ctrl_c_cancels_a_function_call_that_does_not_check_for_cancellation(store: str) -> None:
    process = subprocess.Popen(
        (*SQL, f"SELECT 1; {ENDLESS_CALL}", "--csv"),
        env=os.environ | {"PENSTOCK_STORE": store},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with killed_at_end(process):
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["1\n", "1\n"]
        began = cpu_ticks(process.pid)
        wait_until(lambda: cpu_ticks(process.pid) > began + os.sysconf("SC_CLK_TCK"))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
        assert (process.returncode, "canceled" in errors) == (130, True)


def test_prompt_runs_statements(store: str, tmp_path: Path) -> None:
    terminal = prompt(store, tmp_path)
    try:
        _converse(terminal)
        assert terminal.process.wait(WAIT_S) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
    (history,) = tmp_path.rglob("sql_history")
    assert "SELECT max(id) FROM orders;" in history.read_text()


def test_tab_completes_columns_of_topics_in_the_statement(store: str, tmp_path: Path) -> None:
    terminal = prompt(store, tmp_path)
    try:
        terminal.until("penstock> ")
        assert _offered(terminal, "FROM orders SELECT _") == [
            *("_headers", "_key", "_offset", "_partition", "_timestamp", "_value")
        ]
        assert _offered(terminal, "FROM orders SELECT w") == ["when", "where", "who", "with"]
        assert _offered(terminal, "SELECT w") == ["when", "where", "with"]
        terminal.type("FROM orders\n")  # a multi-line statement
        terminal.until(r"\.\.\.> ")
        terminal.type("SELECT unit\t")
        terminal.until('"unit price"')
        terminal.type(" LIMIT 1;\n")
        assert "┃ unit price ┃" in terminal.until("penstock> ")
    finally:
        terminal.process.kill()
        terminal.process.wait()


def _offered(terminal: Terminal, line: str) -> list[str]:
    """Return the completions that two Tabs list for a line, and delete the line."""
    terminal.type(f"{line}\t\t")
    terminal.until(re.escape(line))
    listed = terminal.until(re.escape(line))
    terminal.type("\x15\n")
    terminal.until(r"\n[^\n]*penstock> ")
    return sorted(listed.replace("\x07", " ").removesuffix(f"penstock> {line}").split())


def _converse(terminal: Terminal) -> None:
    terminal.until("penstock> ")
    terminal.type("SELECT count(*)\n")
    terminal.until(r"\.\.\.> ")
    terminal.type("FROM orders;\n")
    assert "2000" in terminal.until("penstock> ")
    terminal.type("SELECT wh\t, _off\t FROM orders LIMIT 1;\n")
    terminal.until("penstock> ")
    terminal.type("\\d ord\t\n")
    assert "BIGINT" in terminal.until("penstock> ")
    terminal.type("SELECT nope FROM orders;\n")
    assert "columns of orders: _partition" in terminal.until("penstock> ")
    terminal.type(f"{ENDLESS};\n")
    before = terminal.cpu_ticks()
    wait_until(lambda: terminal.cpu_ticks() > before + 30)  # the completed statement runs
    terminal.process.send_signal(signal.SIGINT)
    assert "canceled" in terminal.until("penstock> ")
    terminal.type("SELECT max(id) FROM orders;\n")
    assert "1999" in terminal.until("penstock> ")
    terminal.type("\\q\n")
