"""`penstock doctor` against real clusters over moto: first healthy, then with one defect at a time,
each repaired afterwards.
"""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from penstock.base.ids import ObjectId
from penstock.deploy.cli.app import app
from penstock.stream.format.keys import data_key, wal_key
from penstock.stream.ports import IN_STORE
from tests.support.clients import create_topic
from tests.support.controller_quorum import Quorum
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

TOPIC = "orders"

SLOW_MACHINE = ("--accept", "controller-disk-slow", "--accept", "store-slow")
"""Excludes the speed of the test machine; tests/unit/deploy/test_deploy_doctor.py tests these
checks.
"""

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(tmp_path_factory.mktemp("doctor"), brokers=2) as running:
        running.create(TOPIC, 1)
        running.produce({"topic": TOPIC, "value": b"v%d" % number} for number in range(100))
        running.until_uploaded(TOPIC, set())
        yield running


def examined(*arguments: str, code: int) -> dict[str, Any]:
    """Return the JSON output of `penstock doctor` with this exit code. A slow cluster needs longer
    to settle than the command waits.
    """
    command = ["doctor", "--json", "--settle", "0.3", *SLOW_MACHINE, *arguments]
    done: list[Any] = []

    def is_settled() -> bool:
        done.append(CliRunner().invoke(app, command))
        return done[-1].exit_code == code

    with suppress(TimeoutError):
        wait_until(is_settled)
    assert done[-1].exit_code == code, done[-1].output
    response: dict[str, Any] = json.loads(done[-1].stdout)
    assert response["exit_code"] == code
    return response


def whole(cluster: ThreadedCluster, *arguments: str, code: int) -> dict[str, Any]:
    return examined(
        "--controller", cluster.controller, "--store", cluster.store_url, *arguments, code=code
    )


def sentences(response: dict[str, Any]) -> dict[str, str]:
    """Return the sentences of the findings by code, without hints."""
    return {
        finding["code"]: finding["sentence"]
        for check in response["checks"]
        for finding in check["findings"]
        if finding["level"] != "hint"
    }


def levels(response: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["level"] for check in response["checks"]}


def put(cluster: ThreadedCluster, key: str, data: bytes) -> None:
    cluster.run(cluster.store.put(key, data))


def test_healthy_cluster_has_no_findings_and_the_probe_leaves_no_objects(
    cluster: ThreadedCluster,
) -> None:
    response = whole(cluster, code=0)
    assert sentences(response) == {}
    assert levels(response) == {
        "store": "ok",
        "clocks": "ok",
        "controllers": "hint",
        "versions": "ok",
        "brokers": "ok",
        "listeners": "ok",
        "partitions": "ok",
        "clients": "ok",
        "WALs": "ok",
        "backup": "ok",
        "manifest": "ok",
        "objects": "ok",
        "tables": "ok",
    }
    assert response["verdict"] == "no problem found"
    assert not [key for key in cluster.keys("probe/") if "doctor" in key]
    shown = CliRunner().invoke(
        app,
        ["doctor", *SLOW_MACHINE, "--controller", cluster.controller, "--store", cluster.store_url],
    )
    assert shown.exit_code == 0
    assert shown.stdout.endswith("no problem found\n")


def test_deleted_topic_within_its_grace_period_has_no_findings(
    cluster: ThreadedCluster,
) -> None:
    before = cluster.keys("data/")
    create_topic(cluster.bootstrap, "kept", 1, penstock_delete_grace_ms="3600000")
    wait_until(lambda: cluster.has("kept"))
    cluster.produce({"topic": "kept", "value": b"v%d" % number} for number in range(100))
    cluster.until_uploaded("kept", before)
    cluster.delete("kept")
    wait_until(lambda: not cluster.has("kept"))
    response = whole(cluster, "--older-than", "0s", code=0)
    assert sentences(response) == {}
    assert (levels(response)["manifest"], levels(response)["objects"]) == ("ok", "ok")
    assert "; 1 deleted topic (" in json.dumps(response["checks"])


def test_only_orphans_older_than_the_limit_are_reported_and_deleted(
    cluster: ThreadedCluster,
) -> None:
    orphan = data_key(ObjectId(1 << 40))
    put(cluster, orphan, b"of nobody")
    assert "1 unknown but younger than 1d" in json.dumps(whole(cluster, code=0))
    found = sentences(whole(cluster, "--older-than", "0s", code=1))
    assert found == {
        "orphans": (
            f"1 object (9 B) older than 0s is an orphan, to which nothing refers, such as {orphan}."
        )
    }
    assert sentences(whole(cluster, "--older-than", "0s", "--accept", "orphans", code=0)) == {}

    before = cluster.keys("data/") - {orphan}
    assert orphan in cluster.keys("data/")
    assert whole(cluster, "--older-than", "0s", "--delete-orphans", "--yes", code=0)["deleted"] == 1
    assert orphan not in cluster.keys("data/")
    assert cluster.keys("data/") >= before


def test_no_orphans_are_deleted_without_confirmation_or_without_a_controller(
    cluster: ThreadedCluster,
) -> None:
    orphan = data_key(ObjectId((1 << 40) + 1))
    put(cluster, orphan, b"of nobody")
    command = [
        "doctor",
        "--controller",
        cluster.controller,
        "--store",
        cluster.store_url,
        "--delete-orphans",
        "--older-than",
        "0s",
    ]
    done = CliRunner().invoke(app, command)
    assert "Confirm with --yes" in str(done.exception)
    examined(
        "--store", cluster.store_url, "--delete-orphans", "--yes", "--older-than", "0s", code=1
    )
    assert orphan in cluster.keys("data/")
    cluster.run(cluster.store.delete([orphan]))


def test_deleted_object_is_reported_as_data_loss_with_its_offsets(
    cluster: ThreadedCluster,
) -> None:
    key = cluster.until_uploaded(TOPIC, set())
    data = cluster.run(cluster.store.get(key))
    cluster.run(cluster.store.delete([key]))
    for response in (whole(cluster, code=1), examined("--store", cluster.store_url, code=1)):
        assert sentences(response)["data-lost"].startswith(f"{TOPIC}-0 has lost offsets [0, 100)")
        assert key in sentences(response)["data-lost"]
    put(cluster, key, data[:-1])
    assert (
        f"{key} has {len(data) - 1:,} bytes" in sentences(whole(cluster, code=1))["object-damaged"]
    )
    put(cluster, key, data)
    assert sentences(whole(cluster, code=0)) == {}


def test_killed_broker_and_unreachable_advertised_addresses_are_reported(
    cluster: ThreadedCluster,
) -> None:
    cluster.kill_broker(1)
    fenced = {"broker-fenced": "Broker 1 is fenced: it was declared dead and has not returned."}
    wait_until(lambda: sentences(whole(cluster, code=1)) == fenced)
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster.start_broker(
            1, advertised_listeners=(f"PLAINTEXT://{nowhere}",), advertised_check="off"
        )
        response = sentences(whole(cluster, "--no-objects", code=1))
        assert list(response) == ["broker-unreachable"]
        assert f"Broker 1 cannot be reached at {nowhere}" in response["broker-unreachable"]
        cluster.stop_broker(1)

    other = cluster.bootstrap
    cluster.start_broker(1, advertised_listeners=(f"PLAINTEXT://{other}",), advertised_check="off")
    response = sentences(whole(cluster, "--no-objects", code=1))
    assert response == {
        "broker-is-another": (
            f"{other} is advertised by broker 1 (listener first), but broker 0 responds there."
        )
    }
    cluster.stop_broker(1)
    cluster.start_broker(1)
    wait_until(
        lambda: cluster.image(lambda image: sum(not node.fenced for node in image.nodes)) == 2
    )
    assert sentences(whole(cluster, "--no-objects", code=0)) == {}


def test_doctor_with_only_a_store_checks_the_store(cluster: ThreadedCluster) -> None:
    response = examined("--store", cluster.store_url, code=0)
    assert response["cluster_id"] == cluster.image(lambda image: image.cluster_id)
    assert (
        response["verdict"]
        == "no problem found; not checked: controllers, versions, brokers, listeners, partitions,"
        " clients"
    )
    assert levels(response)["objects"] == levels(response)["backup"] == "ok"


def test_unreachable_controllers_do_not_prevent_store_checks(cluster: ThreadedCluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        response = examined(
            "--controller",
            f"127.0.0.1:{taken.getsockname()[1]}",
            "--store",
            cluster.store_url,
            code=1,
        )
    assert list(sentences(response)) == ["no-controller"]
    assert levels(response)["objects"] == "ok"


def test_broker_address_given_as_controller_is_explained(cluster: ThreadedCluster) -> None:
    address = cluster.bootstrap.partition(",")[0]
    response = examined("--controller", address, code=1)
    assert sentences(response)["no-controller"] == (
        f"No controller responds at {address}: it is the address of a broker, for Kafka"
        " clients, not of a controller."
    )


def test_wal_slot_of_an_unregistered_broker_is_reported_and_kept(
    cluster: ThreadedCluster,
) -> None:
    writer = cluster.image(lambda image: next(image.nodes.running_wals()).writer)
    key = wal_key(writer._replace(node_epoch=writer.node_epoch + 1_000), 0, IN_STORE)  # slot 0
    put(cluster, key, bytes(100))
    found = sentences(whole(cluster, "--older-than", "0s", "--delete-orphans", "--yes", code=1))
    assert list(found) == ["wal-of-unknown-broker"]
    assert key in cluster.keys("wal/")
    cluster.run(cluster.store.delete([key]))


# --- a store without conditional writes -----------------------------------------------------------


class Forgetful(BaseHTTPRequestHandler):
    """A proxy that forwards requests to the store, but drops the condition of writes."""

    behind = ""

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {
            name: value for name, value in self.headers.items() if name.lower() != "if-none-match"
        }
        with (
            closing(http.client.HTTPConnection(self.behind, timeout=PATIENCE_S)) as connection,
            suppress(ConnectionError),
        ):
            self._respond(connection, body, headers)

    def _respond(
        self, connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]
    ) -> None:
        """Forward the request and its response. Raises ConnectionError if the client has canceled
        it.
        """
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        data = response.read()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in {
                "connection",
                "content-length",
                "transfer-encoding",
                "date",
                "server",
            }:
                self.send_header(name, value)
        self.send_header(
            "Content-Length",
            response.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data)),
        )
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Suppress the log."""


@pytest.fixture
def forgetful(cluster: ThreadedCluster) -> Iterator[str]:
    """Return the URL of the cluster's store behind a proxy that drops If-None-Match."""
    endpoint = cluster.store_url.partition("endpoint=")[2]
    handler = type("Handler", (Forgetful,), {"behind": urlsplit(endpoint).netloc})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield cluster.store_url.replace(endpoint, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


def test_store_that_ignores_if_none_match_is_reported(
    cluster: ThreadedCluster, forgetful: str
) -> None:
    response = examined(
        "--controller", cluster.controller, "--store", forgetful, "--no-objects", code=1
    )
    assert list(sentences(response)) == ["store-not-conditional"]
    assert "If-None-Match" in sentences(response)["store-not-conditional"]


def test_missing_store_and_store_of_another_cluster_are_reported(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"s3://penstock?endpoint=http://127.0.0.1:{taken.getsockname()[1]}&deadline_ms=500"
        response = examined("--controller", cluster.controller, "--store", url, code=1)
    assert list(sentences(response)) == ["store-fails"]
    assert levels(response)["listeners"] == "ok"
    response = examined(
        "--controller", cluster.controller, "--store", f"file:{tmp_path}", "--no-objects", code=1
    )
    assert "holds no cluster at all" in sentences(response)["store-of-another-cluster"]


# --- three controllers ----------------------------------------------------------------------------


async def test_stopped_controller_and_lost_quorum_are_reported(
    tmp_path: Path,
) -> None:
    quorum = Quorum(tmp_path)
    try:
        await quorum.start()
        every = ",".join(quorum.addresses)
        arguments = ("--controller", every, "--accept", "no-broker")
        assert sentences(await asyncio.to_thread(examined, *arguments, code=0)) == {}

        leader = await quorum.leader()
        away = next(number for number in quorum.servers if number != leader)
        await quorum.stop_one(away)
        found = sentences(await asyncio.to_thread(examined, *arguments, code=1))
        assert list(found) == ["controller-unreachable"]
        assert found["controller-unreachable"].startswith(
            f"Controller {away} at {quorum.addresses[away]} does not respond; it last fetched"
        )

        await quorum.stop_one(next(number for number in quorum.servers if number != leader))
        found = sentences(await asyncio.to_thread(examined, *arguments, code=1))
        assert found["no-quorum-leader"].startswith(
            "The controllers have no leader: 1 of 3 respond"
        )
    finally:
        await quorum.stop()
