"""A broker that accepts connections but never responds, like a hung one, beside one
that responds.
"""

import json
import os
import signal
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from penstock.deploy.clients import silent_brokers, state_file
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.kafka import Kafka, interruptible
from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.clients.silent_brokers import SILENT_S, SilentBrokers
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.client import connection
from penstock.protocol.client.connection import wait_at_most
from penstock.protocol.client.errors import NoResponse
from penstock.protocol.gen import metadata
from tests.support.silent_brokers import listening, responding
from tests.support.waiting import wait_until


def cluster_id(bootstrap: str) -> str | None:
    with WireClient(bootstrap, PLAINTEXT) as client:
        return client.send_request(
            apis.METADATA,
            metadata.MetadataRequest([]),
            metadata.MetadataResponse,
        ).cluster_id


def test_the_next_address_is_tried_if_a_broker_is_silent() -> None:
    with listening() as (silent, _), responding() as address:
        for bootstrap in (f"{silent},{address}", f"{address},{silent}", address):
            assert cluster_id(bootstrap) == "responds"


def test_a_request_waits_no_longer_than_its_context_allows() -> None:
    def send_request(bootstrap: str) -> None:
        wait_at_most(0.2)
        with pytest.raises(NoResponse, match=r"accepts connections but sent no response .* 0.2 s"):
            cluster_id(bootstrap)

    with listening() as (silent, _), listening() as (other, _):
        for bootstrap in (silent, f"{silent},{other}"):
            copy_context().run(send_request, bootstrap)


def test_a_client_reports_a_silent_broker_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(silent_brokers, "SILENT_S", 0.2)
    brokers = SilentBrokers()
    with listening() as (silent, _):
        consumer = consumer_of(silent, brokers)
        wait_until(lambda: consumer.poll(0.1) is None and bool(brokers.names))
        consumer.poll(0.1)
        consumer.close()
    assert list(brokers.names.values()) == [f"broker at {silent}"]
    assert brokers.reason() == f"; broker at {silent} did not respond"
    assert capsys.readouterr().err.count(f"waiting for broker at {silent}, which has not") == 1


def test_a_client_without_a_connection_reports_it_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(silent_brokers, "CUT_OFF_S", 0.2)
    with listening() as (closed, _):
        pass
    said = ""

    def poll_until_said() -> bool:
        nonlocal said
        consumer.poll(0.1)
        said += capsys.readouterr().err
        return "no broker has been connected for 0.2 s" in said

    consumer = consumer_of(closed, SilentBrokers())
    wait_until(poll_until_said)
    poll_until_said()
    consumer.close()
    assert said.count("no broker has been connected") == 1


def test_ctrl_c_during_a_callback_is_raised_by_poll() -> None:
    """Repeated, because Python ignores an exception that it raises while it collects garbage."""
    is_polling = False

    def interrupt() -> float:
        os.kill(os.getpid(), signal.SIGINT if is_polling else 0)
        return 0.0

    brokers = SilentBrokers(interrupt)
    with listening() as (silent, _):
        consumer = consumer_of(silent, brokers)
        is_polling = True
        with pytest.raises(KeyboardInterrupt):
            wait_until(lambda: bool(interruptible(partial(consumer.poll, 0.1))))
        is_polling = False
        consumer.close()


def consumer_of(bootstrap: str, brokers: SilentBrokers) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "statistics.interval.ms": 20,
            "stats_cb": brokers.read,
            "log_level": 0,
        }
    )


def test_only_brokers_with_outstanding_requests_count_as_silent() -> None:
    """Requests to a coordinator may wait for other members, and an idle broker has no requests."""
    now = [0.0]
    brokers = SilentBrokers(lambda: now[0])

    def read(**changes: int | str) -> list[str]:
        broker = {"nodename": "h:1", "nodeid": 1, "source": "learned", "waitresp_cnt": 1, "rx": 5}
        brokers.read(json.dumps({"brokers": {"h:1/1": broker | changes}}))
        return list(brokers.names.values())

    for _ in range(2):
        assert read(waitresp_cnt=0) == read(source="logical") == []
        now[0] += SILENT_S
    assert read(waitresp_cnt=0) == read() == []
    now[0] += SILENT_S
    assert read() == ["broker 1 at h:1"]
    assert read(rx=6) == []
    assert brokers.reason() == ""


def described(bootstrap: str, security: ClientSecurity) -> None:
    with Brokers(bootstrap, security=security) as brokers:
        brokers.metadata()


@pytest.mark.parametrize("connect", [WireClient, Kafka, described])
@pytest.mark.parametrize(
    ("role", "reason"),
    [
        ("controller", "it is the address of a controller, not of a broker"),
        ("store", "it is the address of the object store, not of a broker"),
        ("console", "it is the address of the web console, not of a broker"),
        ("", "it accepts connections but sent no response within 0.2 s, as a hung broker or"),
    ],
)
def test_the_error_of_a_silent_port_contains_the_right_address(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    connect: Callable[[str, ClientSecurity], object],
    role: str,
    reason: str,
) -> None:
    monkeypatch.setattr(connection, "FIRST_RESPONSE_S", 0.2)
    monkeypatch.setenv(state_file.VARIABLE, str(tmp_path / "state"))
    with listening() as (silent, _):
        state = state_of(role, silent)
        state_file.write(tmp_path / "state", state)
        with pytest.raises(NoResponse) as failed:
            connect(silent, PLAINTEXT)
    assert str(failed.value).startswith(f"no broker responds at {silent}: {reason}")
    assert str(failed.value).endswith("for the running `penstock dev`, use --bootstrap h:1,h:2")


def state_of(role: str, address: str) -> state_file.ClusterState:
    """Return the state of a cluster in which another process, not a broker, has this address."""
    host, _, port = address.rpartition(":")
    process = state_file.ProcessState(
        role=role, node_id=None, pid=1, host=host, port=int(port), phase="serving", starts=1
    )
    return state_file.ClusterState(
        pid=os.getpid(),
        bootstrap="h:1,h:2",
        controller="",
        store_url="",
        processes=[process] if role in {"controller", "store"} else [],
        console=f"http://{address}" if role == "console" else "",
    )
