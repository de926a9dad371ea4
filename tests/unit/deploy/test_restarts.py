"""Commands wait only for brokers that are being restarted by `penstock dev`."""

import os
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import structs

from penstock.deploy.clients import restarts, state_file
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.clients.restarts import has_restarted, is_restarting, wait_for_restarts
from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.clients.state_file import ClusterState, Phase, ProcessState
from penstock.deploy.clients.wire import WireClient
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import KafkaFailed, NoResponse
from tests.support.silent_brokers import responding, serve

HERE = os.getpid()
BOOTSTRAP = "127.0.0.1:1"
_T = TypeVar("_T")


def state_of(
    *phases: tuple[Phase, int | None], bootstrap: str = BOOTSTRAP, restarts: bool = True
) -> ClusterState:
    """Return the state of a cluster whose brokers have these phases and process ids."""
    brokers = [
        ProcessState(
            role="broker", node_id=at, pid=pid, host="127.0.0.1", port=1, phase=phase, starts=1
        )
        for at, (phase, pid) in enumerate(phases)
    ]
    return ClusterState(
        pid=HERE,
        bootstrap=bootstrap,
        controller="",
        store_url="",
        processes=brokers,
        restarts=restarts,
    )


def waiting(call: Callable[[], _T]) -> _T:
    """Call it as a command that waits."""

    def run() -> _T:
        wait_for_restarts()
        return call()

    return copy_context().run(run)


def never(_: float) -> None:
    raise AssertionError("nothing restarts")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(state_file.VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (state_of(("stopped", None), ("stopped", None)), True),
        (state_of(("starting", HERE)), True),
        (state_of(("serving", -1)), True),
        (state_of(("serving", HERE), ("stopped", None)), False),
        (state_of(("stopped", None), restarts=False), False),
    ],
)
def test_brokers_count_as_restarting_if_none_runs_and_the_supervisor_starts_them(
    state: ClusterState, expected: bool
) -> None:
    """A broker that was just killed may still be listed as running in the state file."""
    assert is_restarting(state, lambda broker: broker.pid == HERE) == expected


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (None, BOOTSTRAP),
        (state_of(("stopped", None)), "127.0.0.1:2"),
        (state_of(("stopped", None), restarts=False), BOOTSTRAP),
        (state_of(("serving", HERE)), BOOTSTRAP),
    ],
)
def test_commands_do_not_wait_for_other_clusters(
    path: Path, capsys: pytest.CaptureFixture[str], state: ClusterState | None, named: str
) -> None:
    if state is not None:
        state_file.write(path, state)
    assert not waiting(lambda: has_restarted(named, never))
    assert not capsys.readouterr().err


def test_only_commands_that_opt_in_wait(path: Path) -> None:
    state_file.write(path, state_of(("stopped", None)))
    # A new context, because a command in an earlier test may have set the variable in this one.
    assert not Context().run(has_restarted, BOOTSTRAP, never)


def test_the_wait_is_limited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "RESTART_S", 0.0)
    state_file.write(path, state_of(("stopped", None)))
    assert not waiting(lambda: has_restarted(BOOTSTRAP, lambda _: None))


def test_the_wait_ends_if_the_cluster_stops(path: Path) -> None:
    state_file.write(path, state_of(("stopped", None)))
    assert not waiting(lambda: has_restarted(BOOTSTRAP, lambda _: path.unlink()))


def connected(bootstrap: str, security: ClientSecurity) -> Connection:
    return Brokers(bootstrap, security=security).connect()


@pytest.mark.parametrize("connect", [WireClient, connected])
def test_a_client_connects_once_a_broker_runs_again(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    connect: Callable[[str, ClientSecurity], Connection],
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # No server is listening yet.
        bootstrap = f"127.0.0.1:{server.getsockname()[1]}"
        state_file.write(path, state_of(("starting", HERE), bootstrap=bootstrap))

        def restart(_: float) -> None:
            server.listen()
            serve(server)
            state_file.write(path, state_of(("serving", HERE), bootstrap=bootstrap))

        with pytest.raises(NoResponse):
            connect(bootstrap, PLAINTEXT)
        monkeypatch.setattr(has_restarted, "__defaults__", (restart,))
        waiting(lambda: connect(bootstrap, PLAINTEXT)).close()
    assert "waiting for the brokers of `penstock dev`" in capsys.readouterr().err


@pytest.mark.parametrize("connect", [WireClient, connected, Kafka])
@pytest.mark.parametrize("cluster_id", ["responds", "own", ""])
def test_a_broker_of_another_cluster_is_an_error(
    path: Path, connect: Callable[[str, ClientSecurity], object], cluster_id: str
) -> None:
    """Another process uses the port of a broker that died. A cluster that is starting has an empty
    id.
    """
    with responding() as address:
        state = state_of(("serving", HERE), bootstrap=address)
        state_file.write(path, structs.replace(state, cluster_id=cluster_id))
        if cluster_id == "own":
            with pytest.raises(KafkaFailed, match="belongs to cluster responds, not to the run"):
                connect("", PLAINTEXT)
        for bootstrap in (address, *([""] if cluster_id != "own" else [])):
            opened = connect(bootstrap, PLAINTEXT)
            if isinstance(opened, Connection):
                opened.close()
