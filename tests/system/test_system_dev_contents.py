"""`penstock dev --topics --seed-from`, `penstock snippets` and `penstock top`, as a newcomer uses
them.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.deploy.local.handle import LocalCluster
from tests.support.dev_cluster import PENSTOCK, DevCluster, penstock, requested
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.system

SEED = """\
{"topic": "orders", "key": "a", "value": {"n": 1}, "partition": 2, "headers": {"h": "1"}}
plain text

{"topic": "new", "key": "k", "value": null}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start a cluster on a persistent store a second time."""
    directory = tmp_path_factory.mktemp("dev")
    (directory / "seed.jsonl").write_text(SEED)
    arguments = [
        "--store",
        f"file:{directory}/data",
        "--brokers",
        "1",
        "--topics",
        "orders:3,clicks:12",
        "--log-level",
        "error",
    ]
    with DevCluster([*arguments, "--seed-from", str(directory / "seed.jsonl")]) as first:
        topics = {
            topic["name"]: topic["partitions"] for topic in requested(first, "topics", "list")
        }
        assert topics == {"orders": 3, "clicks": 12, "new": 1}, (
            "they are there when the ready line is"
        )
        wait_until(lambda: written(first) == {"orders": 2, "clicks": 0, "new": 1})
    with DevCluster([*arguments, "--seed-from", str(directory / "seed.jsonl")]) as second:
        yield second


def written(cluster: LocalCluster) -> dict[str, int]:
    """Return the record counts of user topics."""
    topics = [
        topic["name"]
        for topic in requested(cluster, "topics", "list")
        if topic["name"] in {"orders", "clicks", "new"}
    ]
    return {
        name: sum(
            part["latest"] for part in requested(cluster, "topics", "describe", name)["partitions"]
        )
        for name in topics
    }


def test_seeding_is_not_repeated_at_a_second_start(cluster: LocalCluster) -> None:
    read = penstock(
        cluster, "consume", "orders", "--from-beginning", "--max-messages", "2", "--json"
    )
    records = [json.loads(line) for line in read.stdout.splitlines()]
    assert sorted((record["key"], record["value"]) for record in records if record["key"]) == [
        ("a", '{"n":1}')
    ]
    assert {record["value"] for record in records} == {'{"n":1}', "plain text"}
    assert written(cluster) == {"orders": 2, "clicks": 0, "new": 1}


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_printed_snippets_run_unchanged(cluster: LocalCluster, client: str) -> None:
    topic = f"from-{client}"
    shown = penstock(cluster, "snippets", client, "--topic", topic)
    assert penstock(cluster, "topics", "create", topic).returncode == 0
    done = subprocess.run(
        [sys.executable, "-c", shown.stdout],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "b'k' b'hello'\n", done.stderr


def test_snippets_list_has_a_line_for_each_client(cluster: LocalCluster) -> None:
    shown = penstock(cluster, "snippets").stdout.splitlines()
    assert [line.split()[0] for line in shown] == [
        "confluent-kafka",
        "kafka-python",
        "aiokafka",
        "kcat",
        "java",
        "spark",
    ]
    assert all(cluster.bootstrap in line for line in shown[:-1])
    unknown = penstock(cluster, "snippets", "sarama")
    assert (
        unknown.returncode,
        "error: client 'sarama' is not supported: confluent-kafka" in unknown.stderr,
    ) == (2, True)


def test_top_shows_nodes_and_topics(cluster: LocalCluster) -> None:
    view = requested(cluster, "top", "--interval", "0.1")
    assert [(node["node_id"], node["fenced"]) for node in view["cluster"]["nodes"]] == [(0, False)]
    topics = {topic["name"]: topic for topic in view["topics"]}
    assert (
        topics["orders"]["records"],
        topics["orders"]["partitions"],
        topics["orders"]["records_s"],
    ) == (2, 3, 0.0)
    page = penstock(cluster, "top", "--once", "--interval", "0.1")
    assert page.returncode == 0, page.stderr
    assert "append p50/p99 ms" in page.stdout
    assert "clicks" in page.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--topics", "a:b"), "error: --topics 'a:b' is not allowed: NAME:PARTITIONS"),
        (("--seed-from", "/no/such/file"), "error: --seed-from /no/such/file: No such file"),
        (
            ("--topics", "a", "--seed-from", "{directory}/wrong.jsonl"),
            "wrong.jsonl, line 2: unknown field 'vlaue'; did you mean 'value'?",
        ),
    ],
)
def test_invalid_arguments_are_reported_before_anything_is_started(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / "wrong.jsonl").write_text('fine\n{"topic": "a", "vlaue": 1}\n')
    given = [argument.format(directory=tmp_path) for argument in arguments]
    command = (
        *PENSTOCK,
        "dev",
        "--port",
        "0",
        "--state-file",
        str(tmp_path / "state.json"),
        *given,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
