"""A real cluster whose store has lost a WAL slot of a dead broker: affected and unaffected
partitions, reports, and the repair.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.controller.metadata.topics import leader_of
from penstock.deploy.cli.app import app
from penstock.lake.manifest.errors import EndInDoubt
from penstock.stream.config import StreamConfig
from penstock.stream.format.keys import parse_wal_key
from penstock.stream.ports import BrokerIncarnation
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

SLOTS = 12

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(
        tmp_path, brokers=2, stream_config=StreamConfig(wal_linger_ms=0)
    ) as running:
        yield running


def leader(cluster: ThreadedCluster, topic: str) -> BrokerIncarnation:
    def look(image: Any) -> BrokerIncarnation:
        return leader_of(image.topics.by_name(topic).partitions[0])

    found: BrokerIncarnation = cluster.image(look)
    return found


def repair(cluster: ThreadedCluster, *arguments: str) -> dict[str, Any]:
    command = [
        "wal",
        "repair",
        "--json",
        "--controller",
        cluster.controller,
        "--store",
        cluster.store_url,
        *arguments,
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    response: dict[str, Any] = json.loads(done.stdout)
    return response


def findings(cluster: ThreadedCluster) -> dict[str, str]:
    command = [
        "doctor",
        "--json",
        "--settle",
        "0.1",
        "--no-objects",
        "--controller",
        cluster.controller,
        "--store",
        cluster.store_url,
    ]
    response = json.loads(CliRunner().invoke(app, command).stdout)
    return {
        finding["code"]: finding["sentence"]
        for check in response["checks"]
        for finding in check["findings"]
    }


def lose_a_slot(cluster: ThreadedCluster) -> tuple[str, str, str, bytes]:
    """Lose a slot of a dead leader. Return the topic that lost a record, an unaffected topic, the
    slot's key and its bytes.
    """
    for name in ("one", "two"):
        cluster.create(name, 1)
    wait_until(lambda: leader(cluster, "one").node_id >= 0 and leader(cluster, "two").node_id >= 0)
    assert leader(cluster, "one") != leader(cluster, "two")
    for number in range(SLOTS):
        for topic in ("one", "two"):
            cluster.produce([{"topic": topic, "value": b"%s-%d" % (topic.encode(), number)}])
    dead = leader(cluster, "one")
    slots = [
        key
        for key in sorted(cluster.keys("wal/"))
        if (slot := parse_wal_key(key)) is not None and slot.writer == dead
    ]
    key = next(key for key in slots if b"one-4" in cluster.run(cluster.store.get(key)))
    data = cluster.run(cluster.store.get(key))
    cluster.run(cluster.store.delete([key]))
    assert key in findings(cluster)["wal-slot-at-risk"]
    cluster.kill_broker(dead.node_id, recovered=False)
    wait_until(lambda: "wal-slot-lost" in findings(cluster))
    return "one", "two", key, data


def test_lost_wal_slot_is_reported_and_given_up_only_on_request(
    cluster: ThreadedCluster,
) -> None:
    lost, other, key, _ = lose_a_slot(cluster)
    found = findings(cluster)["wal-slot-lost"]
    assert key in found
    assert f"{lost}-0" in found
    assert [row[1] for row in cluster.consume(other, 1, SLOTS)] == [
        b"two-%d" % number for number in range(SLOTS)
    ]
    assert cluster.look(other).bounds
    with pytest.raises(EndInDoubt, match=key):
        cluster.look(lost)

    dry = repair(cluster)
    (wal,) = dry["wals"]
    assert [slot["key"] for slot in wal["slots"]] == [key]
    assert [
        (tail["start_offset"], tail["end_offset"])
        for tail in wal["partitions"]
        if tail["topic"] == lost
    ] == [(4, SLOTS)]
    assert repair(cluster)["wals"] == dry["wals"], "looking changes nothing"

    assert repair(cluster, "--accept-loss")["ended"]
    assert repair(cluster)["wals"] == []
    assert "wal-slot-lost" not in findings(cluster)
    cluster.produce([{"topic": lost, "value": b"after"}])
    assert [row[1] for row in cluster.consume(lost, 1, 5)] == [
        b"one-0",
        b"one-1",
        b"one-2",
        b"one-3",
        b"after",
    ]


def test_restored_wal_slot_loses_no_record(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.background.recovery.DAMAGED_RETRY_S", 0.5)
    lost, _, key, data = lose_a_slot(cluster)
    cluster.run(cluster.store.put(key, data))
    wait_until(lambda: "wal-slot-lost" not in findings(cluster) and repair(cluster)["wals"] == [])
    assert [row[1] for row in cluster.consume(lost, 1, SLOTS)] == [
        b"one-%d" % number for number in range(SLOTS)
    ]
