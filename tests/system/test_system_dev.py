"""`penstock dev` and related commands as a newcomer uses them, with real processes, sockets and
clients.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.deploy.local.directories import TEMPORARY_PREFIX
from penstock.deploy.local.handle import LocalCluster
from penstock.objectstore.config import S3Config
from penstock.objectstore.url import open_store, parse_store_url
from tests.support.child_process import killed_at_end
from tests.support.dev_cluster import (
    PENSTOCK,
    DevCluster,
    is_gone,
    penstock,
    pids_of,
    requested,
    run_with,
)
from tests.support.ports import free_port
from tests.support.s3_headers import SSE_HEADERS, told_headers
from tests.support.waiting import PATIENCE_S, until, wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with DevCluster(["--log-level", "error"]) as cluster:
        yield cluster


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for pid in pids if not is_gone(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)


def temporary_directories(pid: int) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}{pid}-*"))


def test_ready_line_and_state_file_contain_the_same_addresses(cluster: LocalCluster) -> None:
    reported = dict(
        part.split("=", 1) for part in cluster.ready_line.removeprefix("ready: ").split()
    )
    state = cluster.state()
    assert (reported["bootstrap"], reported["store"], reported["controller"]) == (
        state.bootstrap,
        state.store_url,
        state.controller,
    )
    assert [(process.role, process.node_id, process.phase) for process in state.processes] == [
        ("store", None, "serving"),
        ("controller", 0, "serving"),
        ("broker", 0, "serving"),
        ("broker", 1, "serving"),
    ]
    assert len(set(pids_of(cluster))) == 5, "each is a process of its own"
    for process in state.processes:
        with socket.create_connection((process.host, process.port), timeout=PATIENCE_S):
            pass
    taken = penstock(cluster, "dev", "--port", state.bootstrap.split(",")[0].split(":")[1])
    assert taken.returncode == 1
    assert f"by the `penstock dev` that is already running (pid {state.pid})" in taken.stderr
    assert json.loads(cluster.state_path.read_text())["processes"][2]["port"] == int(
        state.bootstrap.split(",")[0].split(":")[1]
    )


def test_topics_produce_and_consume_commands_work(cluster: LocalCluster) -> None:
    created = penstock(
        cluster,
        "topics",
        "create",
        "words",
        "--partitions",
        "3",
        "--config",
        "retention.ms=3600000",
    )
    assert (created.returncode, created.stdout) == (0, "created words\n")
    words = {"name": "words", "partitions": 3, "with_leader": 3}
    wait_until(lambda: words in requested(cluster, "topics", "list"))
    sent = penstock(
        cluster,
        "produce",
        "words",
        "--key-separator",
        ":",
        given="".join(f"k{n}:v{n}\n" for n in range(300)),
    )
    assert (sent.returncode, sent.stderr) == (0, "300 records acknowledged\n")
    described = requested(cluster, "topics", "describe", "words")
    assert sum(part["latest"] for part in described["partitions"]) == 300
    assert described["configs"]["retention.ms"] == "3600000"
    read = penstock(
        cluster, "consume", "words", "--from-beginning", "--max-messages", "300", "--json"
    )
    records = [json.loads(line) for line in read.stdout.splitlines()]
    assert {(record["key"], record["value"]) for record in records} == {
        (f"k{n}", f"v{n}") for n in range(300)
    }
    fork = requested(cluster, "topics", "fork", "words", "words-2", "--config", "retention.ms=9")
    assert [(part["earliest"], part["latest"]) for part in fork["partitions"]] == [
        (0, part["latest"]) for part in described["partitions"]
    ]
    given = '{"partitions": [{"topic": "words", "partition": 1, "offset": 0}]}'
    at = penstock(cluster, "topics", "fork", "words", "words-3", "--at-offsets", "-", given=given)
    assert (at.returncode, "forked words to words-3 in" in at.stdout) == (0, True)
    parts = requested(cluster, "topics", "describe", "words-3")["partitions"]
    assert [part["latest"] for part in parts][1] == 0
    wrong = penstock(cluster, "topics", "fork", "words", "w", "--at-offsets", "-", given="{}")
    assert (wrong.returncode, '"partition": 0' in wrong.stderr) == (2, True)
    delete = ("topics", "delete-records", "--yes", "words")
    assert requested(cluster, *delete, "--before-offset", "1", "--partition", "2") == [
        {"partition": 2, "earliest": 1, "error": None}
    ]
    assert requested(cluster, *delete, "--before-time", "2020-01-01") == [
        {"partition": part["partition"], "earliest": int(part["partition"] == 2), "error": None}
        for part in described["partitions"]
    ]
    refused = penstock(cluster, *delete, "--before-offset", "1000")
    assert (refused.returncode, "OFFSET_OUT_OF_RANGE" in refused.stderr) == (1, True)
    unclear = penstock(cluster, *delete, "--all", "--before-offset", "1")
    assert (unclear.returncode, "specify one of" in unclear.stderr) == (2, True)
    assert penstock(cluster, *delete, "--all").returncode == 0
    emptied = requested(cluster, "topics", "describe", "words")["partitions"]
    assert [part["earliest"] for part in emptied] == [part["latest"] for part in emptied]
    assert penstock(cluster, "topics", "delete", "--yes", "words").returncode == 0
    wait_until(
        lambda: "words" not in [topic["name"] for topic in requested(cluster, "topics", "list")]
    )


def test_consumer_group_resumes_from_its_committed_offsets(cluster: LocalCluster) -> None:
    penstock(cluster, "topics", "create", "shared")
    penstock(cluster, "produce", "shared", given="one\ntwo\nthree\n")
    first = penstock(
        cluster, "consume", "shared", "--from-beginning", "--group", "g", "--max-messages", "2"
    )
    second = penstock(
        cluster, "consume", "shared", "--from-beginning", "--group", "g", "--max-messages", "1"
    )
    assert (first.stdout, second.stdout) == ("one\ntwo\n", "three\n")


def test_streams_and_nodes_commands_show_the_metadata(cluster: LocalCluster) -> None:
    penstock(cluster, "topics", "create", "looked-at", "--partitions", "2")
    streams = requested(cluster, "streams", "describe", "looked-at")
    assert sorted((stream["partition"], stream["kind"]) for stream in streams) == [
        (index, kind) for index in range(2) for kind in ("data", "meta", "txn")
    ]
    nodes = requested(cluster, "nodes")
    assert [(node["node_id"], node["fenced"]) for node in nodes["nodes"]] == [
        (0, False),
        (1, False),
    ]
    assert nodes["controller"] == cluster.state().controller
    for command in (
        ("streams", "describe", "looked-at"),
        ("nodes",),
        ("topics", "list"),
        ("topics", "describe", "looked-at"),
    ):
        assert penstock(cluster, *command).returncode == 0, "also as a table"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("topics", "describe", "nope"), 1, "error: topic 'nope' does not exist"),
        (("topics", "create", "a/b"), 1, "error: topic 'a/b' was not created: "),
        (("topics", "create", "c", "--config", "retention.m=1"), 1, "did you mean retention.ms?"),
        (("topics", "create", "c", "--config", "retention.ms"), 2, "KEY=VALUE"),
        (
            ("topics", "list", "--bootstrap", "127.0.0.1:1"),
            1,
            "error: no broker responds at 127.0.0.1:1",
        ),
        (
            ("topics", "list", "--bootstrap", "127.0.0.1"),
            1,
            "at 127.0.0.1: '127.0.0.1' is not HOST:PORT, as in 127.0.0.1:9092; ",
        ),
        (
            ("topics", "list", "--bootstrap", "no-such-host.invalid:1"),
            1,
            "the host name 'no-such-host.invalid' cannot be resolved",
        ),
        (("streams", "describe", "nope"), 1, "error: topic 'nope' does not exist"),
        (("reassign", "trace", "nope-0"), 1, "error: topic 'nope' does not exist"),
        (("snippets", "JAVA", "--bootstrap"), 2, "requires an argument"),
        (("consume", "nope"), 1, "error: topic 'nope' does not exist"),
        (
            ("produce", "x", "--from-file", "/no/such/file"),
            2,
            "error: --from-file /no/such/file: No such file",
        ),
        (("dev", "--store", "ftp://x"), 2, "error: --store ftp://x is not allowed: moto, memory"),
        (("dev", "--brokers", "0"), 2, "error: --brokers 0 is not allowed"),
        (("broker", "--lisenters", ":1"), 2, "did you mean --listeners?"),
        (("tpics",), 2, "Did you mean 'topics'?"),
    ],
)
def test_invalid_arguments_are_explained_in_one_line(
    cluster: LocalCluster, arguments: tuple[str, ...], code: int, told: str
) -> None:
    is_node = arguments[0] == "broker"  # dispatched before the other commands
    done = penstock(cluster, *arguments) if is_node else run_with(cluster, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_creating_a_topic_explains_where_records_are_stored(cluster: LocalCluster) -> None:
    create = ("topics", "create", "--replication-factor", "3")
    created = run_with(cluster, *create, "fresh")
    assert (created.returncode, created.stdout) == (0, "created fresh\n")
    assert "the object store keeps the records" in created.stderr
    assert (
        "no ranges: records of the last seconds"
        in penstock(cluster, "streams", "describe", "fresh").stdout
    )
    for command in (("describe",), ("alter", "--set", "retention.ms=1")):
        mistaken = run_with(cluster, "configs", *command, "--topic", "frsh")
        assert mistaken.returncode == 1
        assert "topic 'frsh' does not exist; did you mean fresh?" in mistaken.stderr
    for arguments in ((*create, "fresh-2", "--json"), ("topics", "create", "fresh-3")):
        quiet = run_with(cluster, *arguments)
        assert (quiet.returncode, quiet.stderr) == (0, "")


def test_command_without_a_cluster_explains_how_to_name_a_controller(tmp_path: Path) -> None:
    done = subprocess.run(
        (*PENSTOCK, "nodes", "--state-file", str(tmp_path / "s")),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "--controller HOST:PORT" in done.stderr


def test_port_in_use_is_reported(cluster: LocalCluster) -> None:
    port = cluster.brokers()[0].port
    done = penstock(cluster, "dev", "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"port {port} is taken by the `penstock dev` that is already running" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.costly("starts two clusters at a time, one of them with a process for each node")
@pytest.mark.parametrize(("store", "are_of_one_user"), [("memory", True), ("file", False)])
def test_clusters_starting_at_once_on_one_port_never_both_report_ready(
    tmp_path: Path, store: str, *, are_of_one_user: bool
) -> None:
    """The second cluster of the same user finds the state file of the first. Clusters of two users
    cannot detect each other before their brokers listen, so both may end.
    """
    port, started = str(free_port()), list[subprocess.Popen[str]]()
    homes = [tmp_path / ("a" if are_of_one_user else name) for name in ("a", "b")]
    with ExitStack() as stack:
        for name, home in zip(("one", "two"), homes, strict=True):
            url = store if store == "memory" else f"file:{tmp_path / name}"
            process = subprocess.Popen(
                (*PENSTOCK, "dev", "--no-console", "--port", port, "--store", url),
                env={
                    **os.environ,
                    "XDG_RUNTIME_DIR": "",
                    "XDG_CACHE_HOME": str(home),
                    "TMPDIR": str(tmp_path),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(stack.enter_context(killed_at_end(process)))
        lines = [process.stdout.readline() for process in started if process.stdout]
        assert "" in lines
        assert not are_of_one_user or lines.count("") == 1
        for line, process in zip(lines, started, strict=True):
            if line:
                assert line.startswith("ready:")
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == (0 if line else 1)
            assert "Traceback" not in errors
            assert bool(line) or "is taken by" in errors
            if are_of_one_user and not line:
                assert "is taken by the `penstock dev` that is already running" in errors
    assert not list(tmp_path.glob(f"{TEMPORARY_PREFIX}*"))
    assert not list(tmp_path.glob("*/penstock/dev*.json"))


def test_missing_bucket_is_reported_with_the_command_that_creates_it(cluster: LocalCluster) -> None:
    endpoint = cluster.state().store_url.partition("endpoint=")[2]
    done = penstock(
        cluster, "dev", "--port", "0", "--store", f"s3://no-such-bucket?endpoint={endpoint}"
    )
    assert done.returncode == 1
    assert (
        f"aws s3api create-bucket --bucket no-such-bucket --endpoint-url {endpoint}" in done.stderr
    )


async def test_three_client_libraries_consume_each_others_records(cluster: LocalCluster) -> None:
    from aiokafka import AIOKafkaConsumer
    from confluent_kafka import Producer
    from kafka import KafkaConsumer

    await asyncio.to_thread(penstock, cluster, "topics", "create", "clients")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(50):
        producer.produce("clients", str(number).encode())
    assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0

    def read() -> list[bytes]:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap.split(","),
            "auto_offset_reset": "earliest",
        }
        consumer = KafkaConsumer("clients", consumer_timeout_ms=PATIENCE_S * 1_000, **settings)
        values = [next(consumer).value for _ in range(50)]
        consumer.close()
        return values

    expected = [str(number).encode() for number in range(50)]
    assert await asyncio.to_thread(read) == expected
    async with AIOKafkaConsumer(
        "clients", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", group_id="aio"
    ) as consumer:
        async with asyncio.timeout(PATIENCE_S):
            assert [(await anext(consumer)).value for _ in range(50)] == expected


def test_killed_broker_is_restarted_and_recorded_in_the_state_file(cluster: LocalCluster) -> None:
    victim = cluster.brokers()[1]
    cluster.kill([victim])
    state = cluster.wait_for_new([victim])
    fresh = state.of_role("broker")[1]
    assert fresh.pid != victim.pid
    assert (fresh.port, fresh.starts) == (victim.port, victim.starts + 1)
    assert penstock(cluster, "topics", "list").returncode == 0


def test_commands_wait_for_restarting_brokers(cluster: LocalCluster) -> None:
    penstock(cluster, "topics", "create", "waiting")
    for command, given in (
        (("produce", "waiting"), "one\ntwo\n"),
        (("consume", "waiting", "--from-beginning", "--max-messages", "2"), ""),
    ):
        brokers = cluster.brokers()
        cluster.kill(brokers)
        done = penstock(cluster, *command, given=given)
        assert (done.returncode, "waiting for the brokers" in done.stderr) == (0, True), done
        cluster.wait_for_new(brokers)
    assert sorted(done.stdout.split()) == ["one", "two"]


@pytest.mark.parametrize("store", ["moto", "memory"])
def test_ctrl_c_removes_processes_and_files(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The first and the last line say where the data is."""
    with DevCluster(["--store", store, "--log-level", "error"]) as cluster:
        pids, pid, state_path = pids_of(cluster), cluster.pid, cluster.state_path
        penstock(cluster, "topics", "create", "t")
        assert temporary_directories(pid)
        assert cluster.stop(signal.SIGINT) == 0
        wait_until_gone(pids)
        assert temporary_directories(pid) == []
        assert not state_path.exists()
    shown = capfd.readouterr().err
    assert "starting 1 controller" in shown.splitlines()[0]
    assert "data are in memory and end with it" in shown.splitlines()[0]
    assert shown.endswith("its data was in memory and is lost\n")


@pytest.mark.parametrize("is_repeated", [False, True])
def test_signal_during_the_start_removes_all_files(tmp_path: Path, is_repeated: bool) -> None:
    """With --secure, creating the certificates takes some time before the event loop handles
    signals.
    """
    command = (*PENSTOCK, "dev", "--store", "memory", "--secure", "--port", "0")
    process = subprocess.Popen(
        (*command, "--state-file", str(tmp_path / "state")),
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    with killed_at_end(process):
        wait_until(lambda: bool(list(tmp_path.glob(f"{TEMPORARY_PREFIX}*"))))
        process.terminate()
        if is_repeated:
            signal_until_end(process.pid, process.poll)
        process.wait(PATIENCE_S)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("store", ["moto", "memory"])
def test_signals_during_the_cleanup_do_not_prevent_it(store: str) -> None:
    """Sends more signals, as if an impatient user also closed the terminal."""
    arguments = ["--store", store, "--log-level", "error"]
    with DevCluster([*arguments, "--brokers", "1"]) as cluster:
        pids, pid, state_path = pids_of(cluster), cluster.pid, cluster.state_path
        assert temporary_directories(pid)
        signal_until_end(pid, lambda: is_gone(pid) or None)
        wait_until_gone(pids)
        assert temporary_directories(pid) == []
        assert not state_path.exists()


def signal_until_end(pid: int, ended: Callable[[], object]) -> None:
    """Send all terminating signals repeatedly until the process has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while ended() is None:
        assert time.monotonic() < deadline
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.01)  # otherwise the process would do nothing but handle signals


def test_all_processes_die_with_a_killed_supervisor() -> None:
    with DevCluster(["--log-level", "error"]) as cluster:
        pids, pid = pids_of(cluster), cluster.pid
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pids)
        assert temporary_directories(pid)
    assert not temporary_directories(pid)


def test_no_restart_leaves_a_killed_broker_down() -> None:
    with DevCluster(["--no-restart", "--log-level", "error"]) as cluster:
        victim = cluster.brokers()[0]
        cluster.kill([victim])
        state = cluster.wait_until(
            lambda state: state.of_role("broker")[0].phase == "stopped",
            PATIENCE_S,
            "the broker is reported to be down",
        )
        assert state.of_role("broker")[0].pid is None
        assert penstock(cluster, "topics", "create", "t").returncode == 0, "the other one serves"


def test_cluster_ends_when_its_store_dies() -> None:
    with DevCluster(["--log-level", "error"]) as cluster:
        pids = pids_of(cluster)
        cluster.kill(cluster.state().of_role("store"))
        wait_until_gone(pids)


def test_records_in_a_directory_store_outlive_the_cluster(tmp_path: Path) -> None:
    arguments = ["--store", f"file:{tmp_path / 'data'}", "--brokers", "1", "--log-level", "error"]
    with DevCluster(arguments) as cluster:
        penstock(cluster, "produce", "kept", given="one\ntwo\n")
    with DevCluster(arguments) as cluster:
        assert (
            penstock(cluster, "consume", "kept", "--from-beginning", "--max-messages", "2").stdout
            == "one\ntwo\n"
        )


async def test_every_object_is_encrypted_as_the_store_url_specifies(
    cluster: LocalCluster,
) -> None:
    """Covers records, WAL, metadata and manifest, in a bucket on the S3 server of
    another cluster.
    """
    kms_key = "arn:aws:kms:us-east-1:123456789012:key/1"
    url = cluster.state().store_url.replace("?", "/encrypted?")
    url += f"&sse=aws:kms&sse_kms_key_id={kms_key}&sse_bucket_key=true"
    settings = ("upload.block.max.age.ms=200", "manifest.interval.ms=100")
    given = [part for text in settings for part in ("--set", text)]
    with DevCluster(["--store", url, "--log-level", "error", *given]) as other:
        await asyncio.to_thread(penstock, other, "produce", "kept", given="one\ntwo\n")
        kinds = {"data", "manifest", "meta", "wal"}
        store = open_store(url)

        async def has_all_kinds() -> bool:
            return kinds <= {info.key.partition("/")[0] async for info in store.list("")}

        await until(has_all_kinds)
        await store.close()
    config = parse_store_url(cluster.state().store_url)
    assert isinstance(config, S3Config)
    plain = open_store(cluster.state().store_url)
    keys = [info.key async for info in plain.list("encrypted/")]
    await plain.close()
    reported = [await asyncio.to_thread(told_headers, config, key) for key in keys]
    assert len(reported) > 4
    assert {tuple(one[name] for name in SSE_HEADERS) for one in reported} == {
        ("aws:kms", kms_key, "true")
    }


def test_store_requests_are_counted(cluster: LocalCluster) -> None:
    endpoint = cluster.state().store_url.partition("endpoint=")[2]
    with urllib.request.urlopen(f"{endpoint}/-/counts", timeout=PATIENCE_S) as response:
        assert json.loads(response.read())["PUT"] > 0


@pytest.mark.costly("runs the demo with all its checks")
def test_demo_runs_with_fewer_records() -> None:
    done = subprocess.run(
        (*PENSTOCK, "demo", "--records", "20000"),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "demo: OK 20000 records"


def test_broker_is_configured_by_a_file_and_environment_variables(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Start a third broker manually, as an operator does, and stop it gracefully."""
    state = cluster.state()
    config = tmp_path / "broker.toml"
    text = f'store = "{state.store_url}"\nlog.level = "info"\n[broker]\nlisteners = "127.0.0.1:0"\n'
    config.write_text(text + f'controller.quorum.bootstrap.servers = ["{state.controller}"]\n')
    command = (*PENSTOCK, "broker", "--config", str(config))
    environment = os.environ | {"PENSTOCK_NODE_ID": "7"}
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    with killed_at_end(started) as broker:
        assert broker.stderr is not None
        assert any('"broker_started"' in line for line in broker.stderr), sys.exc_info()
        assert 7 in [node["node_id"] for node in requested(cluster, "nodes")["nodes"]]
        broker.send_signal(signal.SIGTERM)
        broker.stderr.read()
        assert broker.wait(PATIENCE_S) == 0


_LOOK_AT_THE_PROCESS = """
import gc, os, signal, sys, threading, time
from pathlib import Path
from penstock.deploy.local.dev_cluster import run_dev
from penstock.deploy.local.plan import ClusterOptions

state = Path(sys.argv[1])

def look():
    while not state.exists() or "serving" not in state.read_text():
        time.sleep(0.01)
    tuned = gc.isenabled() and gc.get_threshold()[2] >= 1000 and gc.get_freeze_count() > 0
    print(tuned, sys.getswitchinterval() < 0.001, "uvloop" in sys.modules, file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=look).start()
run_dev(ClusterOptions(brokers=1, port=0, store="memory"), state, time.monotonic())
"""


def test_single_process_cluster_uses_the_garbage_collector_settings_of_a_broker(
    tmp_path: Path,
) -> None:
    """With Python's defaults, full garbage collections would pause the process for 0.1 s and
    longer.
    """
    command = [sys.executable, "-P", "-c", _LOOK_AT_THE_PROCESS, str(tmp_path / "state.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert "True True True" in done.stderr


def test_files_of_a_secure_cluster_are_unreadable_for_other_users(tmp_path: Path) -> None:
    """This includes directories that an insecure cluster created before."""
    directory = tmp_path / "data"
    for name in ("objects", "controller"):
        (directory / name).mkdir(parents=True, mode=0o755)
    arguments = ["--secure", "--store", f"file:{directory}", "--brokers", "1", "--no-console"]
    with DevCluster(arguments):
        found = [path for path in directory.rglob("*") if path.is_file()]
        assert {"objects", "controller"} <= {path.relative_to(directory).parts[0] for path in found}
        for path in directory.iterdir():
            assert not path.stat().st_mode & 0o007, path
        for root in ("objects", "controller"):
            for path in (directory / root).rglob("*"):
                assert not path.stat().st_mode & 0o007, path


def test_store_of_a_secure_cluster_serves_only_signed_requests() -> None:
    with DevCluster(["--secure", "--brokers", "1", "--no-console"]) as cluster:
        state = cluster.state()
        config = parse_store_url(state.store_url)
        assert isinstance(config, S3Config)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(
                f"{config.endpoint}/{config.bucket}?list-type=2", timeout=PATIENCE_S
            )
        assert config.secret_key
        assert config.secret_key not in cluster.ready_line
        assert cluster.state_path.stat().st_mode & 0o077 == 0
        penstock(cluster, "topics", "create", "t")
