"""The pure and the small parts of the local cluster: plan, ports, state file, directories, restart
policy.
"""

import asyncio
import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest
from rich.console import Console

from penstock.base.errors import ExpectedError
from penstock.broker.config import BrokerConfig
from penstock.controller.config import ControllerConfig
from penstock.deploy.clients import profiles
from penstock.deploy.clients import state_file as state
from penstock.deploy.clients.state_file import ClusterState, ProcessState
from penstock.deploy.console.options import ConsoleOptions
from penstock.deploy.console.options import check as check_console
from penstock.deploy.demo.story import Demo
from penstock.deploy.errors import PortTaken, UsageError
from penstock.deploy.local import moto_store
from penstock.deploy.local.dev_cluster import check
from penstock.deploy.local.directories import (
    TEMPORARY_PREFIX,
    check_store_directory,
    controller_directory,
)
from penstock.deploy.local.handle import LocalCluster
from penstock.deploy.local.in_process import run_in_process
from penstock.deploy.local.plan import ClusterOptions, Ports, plan_cluster
from penstock.deploy.local.ports import find_ports
from penstock.deploy.local.supervisor import describe_end, restart_delay_s
from penstock.deploy.node.config.definition import ROLES, ProcessConfig
from penstock.stream.config import StreamConfig
from tests.support.child_process import killed_at_end
from tests.support.waiting import PATIENCE_S

PORTS = Ports((9092, 9093), (7000,), 5000)


def test_plan_of_the_default_cluster() -> None:
    plan = plan_cluster(ClusterOptions(), PORTS, "/tmp/c")
    assert [(process.role, process.node_id, process.port) for process in plan.processes] == [
        ("store", None, 5000),
        ("controller", 0, 7000),
        ("broker", 0, 9092),
        ("broker", 1, 9093),
    ]
    assert plan.bootstrap == "127.0.0.1:9092,127.0.0.1:9093"
    assert plan.store_url == "s3://penstock?endpoint=http://127.0.0.1:5000"


@pytest.mark.parametrize(
    "store", ["moto", "file:/data", "s3://bucket?endpoint=http://127.0.0.1:9000"]
)
def test_every_node_of_a_plan_accepts_its_flags(store: str) -> None:
    plan = plan_cluster(
        ClusterOptions(store=store, host="0.0.0.0", allow_insecure=True), PORTS, "/tmp/c"
    )
    for role in ROLES:
        for process in plan.of_role(role):
            assert process.load({}).part(ProcessConfig).store == plan.store_url
            assert not any(plan.store_url in text for text in process.arguments), (
                "it may have keys, and everyone can see arguments"
            )
    assert plan.controller == "127.0.0.1:7000", (
        "0.0.0.0 is an address to listen on, not to connect to"
    )


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("file:/data", "file:/data/objects"),
        ("s3://bucket?region=eu-central-1", "s3://bucket?region=eu-central-1"),
        ("memory", "memory:"),
        ("moto", "s3://penstock?endpoint=http://127.0.0.1:5000"),
    ],
)
def test_the_ready_line_shows_a_store_that_readers_can_open(store: str, shown: str) -> None:
    assert plan_cluster(ClusterOptions(store=store), PORTS, "/tmp/c").store_url == shown


def test_user_settings_take_precedence_over_dev_defaults() -> None:
    options = ClusterOptions(
        settings=("broker.session.timeout.ms=9s", "num.partitions=4", "log.cache.max.bytes=300MiB")
    )
    plan = plan_cluster(options, PORTS, "/tmp/c")
    controller = plan.of_role("controller")[0].load({}).part(ControllerConfig)
    broker = plan.of_role("broker")[1].load({})
    assert (controller.session_timeout_ms, controller.default_partitions) == (9_000, 4)
    assert (
        broker.part(BrokerConfig).num_partitions,
        broker.part(StreamConfig).log_cache_bytes_max,
    ) == (4, 300 << 20)


def test_environment_and_file_settings_take_precedence_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER_SESSION_TIMEOUT_MS", "9s")
    file = tmp_path / "penstock.toml"
    file.write_text("[broker]\nshutdown.timeout.ms = 7_000\n")
    plan = plan_cluster(check(ClusterOptions(config=str(file))), PORTS, "/tmp/c")
    assert (
        plan.of_role("controller")[0].load(os.environ).part(ControllerConfig).session_timeout_ms
        == 9_000
    )
    assert (
        plan.of_role("broker")[0].load(os.environ).part(BrokerConfig).shutdown_timeout_ms == 7_000
    )


@pytest.mark.parametrize("missing", ["moto", "flask"])
def test_without_moto_the_error_names_the_install_command(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        moto_store, "find_spec", lambda name: None if name == missing else find_spec(name)
    )
    needed = (
        f'the local S3 server needs the package {missing}: pip install "penstock-streams[local]"'
    )
    with pytest.raises(ExpectedError) as refused:
        check(ClusterOptions())
    assert (
        str(refused.value) == f"{needed}, or choose another store: --store memory, --store file:DIR"
    )
    for store in ("memory", "file:data", "s3://bucket"):
        check(ClusterOptions(store=store))
    with pytest.raises(SystemExit) as ended:
        moto_store.main(["--bucket", "b"])
    assert str(ended.value) == f"error: {needed}"
    assert not Demo(1, Console(width=200)).run()
    assert f"demo: FAILED {needed}" in capsys.readouterr().out


def test_three_controllers_have_each_others_addresses_and_separate_directories() -> None:
    plan = plan_cluster(
        ClusterOptions(controllers=3), Ports((9092, 9093), (7000, 7001, 7002), 5000), "/tmp/c"
    )
    configs = [each.load({}).part(ControllerConfig) for each in plan.of_role("controller")]
    assert [config.voters for config in configs] == [
        {0: "127.0.0.1:7000", 1: "127.0.0.1:7001", 2: "127.0.0.1:7002"}
    ] * 3
    assert [config.controller_id for config in configs] == [0, 1, 2]
    assert len({config.data_dir for config in configs}) == 3
    assert len({config.cluster_id for config in configs}) == 1
    broker = plan.of_role("broker")[0]
    assert plan.controller == "127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002"
    assert plan.controller in broker.arguments


@pytest.mark.parametrize(("store", "count"), [("moto", 2), ("memory", 2), ("file:/data", 1)])
def test_clusters_with_separate_data_have_different_ids(store: str, count: int) -> None:
    options = ClusterOptions(controllers=3, store=store)
    plans = [
        plan_cluster(options, Ports((9092, 9093), (7000, 7001, 7002), 5000), directory)
        for directory in ("/tmp/c", "/tmp/d")
    ]
    configs = [plan.of_role("controller")[0].load({}).part(ControllerConfig) for plan in plans]
    assert len({config.cluster_id for config in configs}) == count


def test_options_are_checked_before_anything_starts() -> None:
    assert check(ClusterOptions(store="file:data")).store == f"file:{Path('data').absolute()}"
    for wrong in (
        ClusterOptions(brokers=0),
        ClusterOptions(controllers=2),
        ClusterOptions(brokers=33),
        ClusterOptions(store="ftp:x"),
        ClusterOptions(store="file:"),
        ClusterOptions(settings=("num.partition=3",)),
        ClusterOptions(settings=("num.partitions",)),
    ):
        with pytest.raises(UsageError):
            check(wrong)


def test_the_error_of_a_port_in_use_contains_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} on 127.0.0.1 is taken.*--port"):
            find_ports(ClusterOptions(port=port, brokers=1), Random(1))
        with pytest.raises(PortTaken, match=rf"port {port} .*--controller-port"):
            find_ports(ClusterOptions(port=0, controller_port=port), Random(1))


@pytest.mark.parametrize("flag", ["--port", "--controller-port"])
async def test_the_error_of_a_port_taken_after_its_choice_contains_the_port(
    tmp_path: Path, flag: str
) -> None:
    options = ClusterOptions(port=0, brokers=1, store="memory", console=False)
    ports = find_ports(options, Random())
    plan = plan_cluster(options, ports, str(tmp_path))
    port = (ports.brokers if flag == "--port" else ports.controllers)[0]
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(PortTaken, match=rf"port {port} on 127.0.0.1 is taken .* {flag} "),
    ):
        await run_in_process(plan, asyncio.Event(), lambda _: None)


def test_ports_of_a_starting_cluster_count_as_in_use() -> None:
    port = find_ports(ClusterOptions(port=0, brokers=1), Random()).brokers[0]
    with pytest.raises(PortTaken, match=rf"port {port} .*--port"):
        find_ports(ClusterOptions(port=port, brokers=1), Random(), reserved=[port])
    free = find_ports(ClusterOptions(port=0), Random(1))
    others = find_ports(ClusterOptions(port=0), Random(1), reserved=free.brokers)
    assert not set(free.brokers) & {*others.brokers, *others.controllers, others.store}


def test_ports_of_one_cluster_differ() -> None:
    ports = find_ports(ClusterOptions(port=0, brokers=20), Random(1))
    assert len({*ports.brokers, *ports.controllers, ports.store}) == 22
    assert find_ports(ClusterOptions(port=0, store="memory"), Random(1)).store == 0
    with pytest.raises(UsageError, match="also a port of another process"):
        find_ports(
            ClusterOptions(port=ports.brokers[0], controller_port=ports.brokers[0]), Random(1)
        )
    with pytest.raises(UsageError, match="is too high for 2 brokers"):
        find_ports(ClusterOptions(port=65_535), Random(1))
    with pytest.raises(UsageError, match="is too high for 1 broker: the last port is 65535"):
        find_ports(ClusterOptions(port=65_536, brokers=1), Random(1))


@pytest.mark.parametrize("port", [-1, 65_536])
def test_ports_out_of_range_are_rejected(port: int) -> None:
    for options in (
        ClusterOptions(port=port),
        ClusterOptions(controller_port=port),
        ClusterOptions(store_port=port),
        ClusterOptions(console_port=port),
    ):
        with pytest.raises(UsageError, match=f"port {port} is not allowed: 0 to 65535"):
            check(options)
    with pytest.raises(UsageError, match=f"--port {port} is not allowed"):
        check_console(ConsoleOptions(bootstrap="b:1", port=port))


def make_state(pid: int) -> ClusterState:
    broker = ProcessState(
        role="broker", node_id=0, pid=1, host="127.0.0.1", port=9092, phase="serving", starts=1
    )
    return ClusterState(
        pid=pid, bootstrap="b:1", controller="c:2", store_url="u", processes=[broker]
    )


def test_state_file_is_written_read_and_removed_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    assert state.read(path) is None
    state.write(path, make_state(os.getpid()))
    assert state.read(path) == make_state(os.getpid())
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"
    state.write(path, make_state(os.getppid()))
    state.remove(path)
    assert path.exists(), "it belongs to another cluster"
    state.write(path, make_state(os.getpid()))
    state.remove(path)
    assert not path.exists()


def test_state_of_a_killed_cluster_is_ignored(tmp_path: Path) -> None:
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    state.write(tmp_path / "s", make_state(over.pid))
    assert state.read(tmp_path / "s") is None


def test_another_process_with_the_pid_of_a_killed_cluster_is_not_its(tmp_path: Path) -> None:
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with killed_at_end(started) as other:
        ours = msgspec.structs.replace(make_state(other.pid), pid_started=state.start_of(other.pid))
        state.write(tmp_path / "s", ours)
        assert state.read(tmp_path / "s") == ours
        for other_start in ("0", state.start_of(os.getpid())):
            before = msgspec.structs.replace(ours, pid_started=other_start)
            state.write(tmp_path / "s", before)
            assert state.read(tmp_path / "s") is None
        process = msgspec.structs.replace(ours.processes[0], pid=other.pid, pid_started="0")
        assert not process.is_running
        with closing(LocalCluster()) as cluster:
            cluster.kill([process])
        other.communicate(b"\n", PATIENCE_S)
        assert other.returncode == 0, "it was not signalled"


def test_concurrent_clusters_have_separate_state_files(tmp_path: Path) -> None:
    """Otherwise commands and consoles of one cluster would show the other."""
    path = tmp_path / "dev.json"
    for name in ("dev.json", "dev-2.json", "dev-3.json"):
        unused = state.unused_path(path)
        assert unused == tmp_path / name
        state.write(unused, make_state(os.getpid()))
    state.remove(tmp_path / "dev-2.json")
    assert state.unused_path(path) == tmp_path / "dev-2.json"
    path.write_text("{")
    assert state.unused_path(path) == path


def test_clusters_that_start_together_choose_ports_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "new" / "dev.json"
    state.write(tmp_path / "new" / "dev-2.json", make_state(os.getpid()))
    with state.choosing(path):
        other = os.open(path.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert [each.pid for each in state.running(path)] == [os.getpid()]
    with state.choosing(Path("/proc/none/dev.json")):
        pass


def test_a_suspended_cluster_does_not_keep_others_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "CHOOSING_S", 0.1)
    path = tmp_path / "dev.json"
    with state.choosing(path), state.choosing(path):
        pass


def test_state_that_cannot_be_written_is_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "dev.json"
    with pytest.raises(ExpectedError, match=r"--state-file, or .* with PENSTOCK_STATE_FILE"):
        state.check_writable(below)
    state.check_writable(tmp_path / "new" / "dev.json")
    assert list((tmp_path / "new").iterdir()) == []
    for store in (f"file:{below}", f"file:{tmp_path / 'file'}"):
        with pytest.raises(ExpectedError, match=r"cannot write to .*; .* --store file:DIR"):
            check_store_directory(store)
    check_store_directory(f"file:{tmp_path / 'data'}")
    check_store_directory("s3://bucket")


def test_a_user_without_a_home_directory_also_has_a_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers may use a user id that is not in /etc/passwd."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = tmp_path / f"penstock-{os.getuid()}"
    assert state.default_path({}) == own / "dev.json"
    assert profiles.read(profiles.default_path({})) == profiles.Profiles()
    own.chmod(0o777)
    assert not state.default_path({}).is_relative_to(tmp_path), "others can write there"


def test_default_state_file_follows_the_environment(tmp_path: Path) -> None:
    assert state.default_path({"PENSTOCK_STATE_FILE": "/x/y"}) == Path("/x/y")
    assert (
        state.default_path({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "penstock" / "dev.json"
    )
    assert state.default_path({"XDG_CACHE_HOME": "/c"}) == Path("/c/penstock/dev.json")


def test_the_journal_is_kept_as_long_as_the_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    left_behind = tmp_path / f"{TEMPORARY_PREFIX}{over.pid}-abc"
    left_behind.mkdir()
    with controller_directory("moto", {}) as directory:
        assert Path(directory).is_dir()
        assert not left_behind.exists()
    assert list(tmp_path.iterdir()) == []
    with controller_directory("file:/data", {}) as directory:
        assert directory == "/data/controller"
    with (
        controller_directory("s3://a", {"XDG_DATA_HOME": "/d"}) as one,
        controller_directory("s3://b", {"XDG_DATA_HOME": "/d"}) as other,
    ):
        assert one != other
        assert one.startswith("/d/penstock/")


def test_restarts_back_off_and_exits_are_described() -> None:
    assert [restart_delay_s(n) for n in (0, 1, 2, 100)] == [1.0, 2.0, 4.0, 5.0]
    assert describe_end(-9) == "was killed by SIGKILL"
    assert describe_end(3) == "ended with exit code 3"
