"""`penstock groups` and Kafka's tools plan the same offset resets for a group in Apache Kafka 4.2,
and show the same lag and tasks.
"""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.deploy.cli.app import app
from tests.interop.commands import TOOLS
from tests.support.clients import create_topic, produce
from tests.support.conversation import alter_configs
from tests.support.java_tools import ToolRunner
from tests.support.streams_groups import GROUP as GROUP_CONFIGS
from tests.support.streams_groups import StreamsTalk, counting

TOPIC, GROUP = "cli-groups", "cli-group"
Offsets = dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def group(peer: str) -> str:
    """Return the address of Kafka, with a group that has committed offset 3 of 6 and 3 of 4 in two
    partitions, and nothing in a third.
    """
    create_topic(peer, TOPIC, 3)
    produce(peer, TOPIC, [b"v"] * 8, (0, 1))
    produce(peer, TOPIC, [b"v"] * 2, (0,))
    ours(
        peer,
        "reset-offsets",
        GROUP,
        "--topic",
        f"{TOPIC}:0,1",
        "--to-offset",
        "3",
        "--execute",
        "--yes",
    )
    return peer


def ours(peer: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["groups", *arguments, "-b", peer])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def planned(peer: str, *options: str) -> Offsets:
    found = json.loads(ours(peer, "reset-offsets", GROUP, *options, "--json"))
    return {(item["topic"], item["partition"]): item["new_offset"] for item in found}


def planned_by_kafka(tools: ToolRunner, peer: str, *options: str) -> Offsets:
    arguments = ("--bootstrap-server", peer, "--reset-offsets", "--group", GROUP, *options)
    done = tools.run(TOOLS["kafka-consumer-groups"], (*arguments, "--export", "--dry-run"))
    assert done.exit_code == 0, done.output
    rows = [row for row in csv.reader(done.output.splitlines()) if len(row) == 3]
    return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}


@pytest.mark.parametrize(
    "goal",
    [
        "--to-earliest",
        "--to-latest",
        "--to-current",
        "--to-offset 2",
        "--to-offset 5",
        "--to-offset 99",
        "--to-datetime 2020-01-01T00:00:00.000",
        "--to-datetime 2190-01-01T00:00:00.000",
        "--by-duration P1D",
        "--by-duration PT0S",
    ],
)
def test_offset_resets_equal_those_of_kafka_tools(tools: ToolRunner, group: str, goal: str) -> None:
    options = ("--topic", TOPIC, *goal.split())
    found = planned(group, *options)
    assert len(found) == 3
    assert found == planned_by_kafka(tools, group, *options)


@pytest.mark.parametrize("shift", ["1", "2", "99", "-2", "-99"])
def test_offset_shifts_equal_those_of_kafka_tools(
    tools: ToolRunner, group: str, shift: str
) -> None:
    options = ("--topic", f"{TOPIC}:0,1", "--shift-by", shift)
    assert planned(group, *options) == planned_by_kafka(tools, group, *options)


def test_offset_files_have_the_format_of_kafka_tools(
    tools: ToolRunner, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text(f"{TOPIC},0,99\n{TOPIC},1,1\n")
    options = ("--from-file", str(path))
    assert planned(group, *options) == {(TOPIC, 0): 6, (TOPIC, 1): 1}
    assert planned(group, *options) == planned_by_kafka(tools, group, *options)


def test_lag_equals_that_of_kafka_tools(tools: ToolRunner, group: str) -> None:
    arguments = ("--bootstrap-server", group, "--describe", "--group", GROUP)
    done = tools.run(TOOLS["kafka-consumer-groups"], arguments)
    lines = [line.split()[1:6] for line in done.output.splitlines() if line.startswith(GROUP)]
    rows = csv.DictReader(io.StringIO(ours(group, "describe", GROUP, "-o", "csv")))
    columns = ("topic", "partition", "current_offset", "log_end_offset", "lag")
    assert sorted(lines) == sorted([row[column] for column in columns] for row in rows)
    assert lines


def test_streams_tasks_equal_those_of_kafka_tools(tools: ToolRunner, peer: str) -> None:
    """Two processes, each with the standby tasks of the other."""
    group, source = "cli-streams", "cli-streams-lines"
    talk = StreamsTalk(peer)
    talk.create(source, 3)
    talk.coordinate(group)
    alter_configs(peer, (GROUP_CONFIGS, group), {"streams.num.standby.replicas": "1"})
    for name in ("a", "b"):
        talk.join(group, name, counting(group, source))
    talk.settle(group, "a", "b")
    (view,) = json.loads(ours(peer, "describe", group, "--json"))
    assert (view["type"], view["state"], view["topology_epoch"]) == ("streams", "Stable", 0)
    shown = tools.run(
        TOOLS["kafka-streams-groups"],
        ("--bootstrap-server", peer, "--describe", "--group", group, "--members"),
    )
    expected = {
        words[1]: (words[2], dict(re.findall(r"(ACTIVE|STANDBY): ((?:\d:\[[\d,]+\]; )+)", line)))
        for line in shown.output.splitlines()
        if (words := line.split()) and words[0] == group
    }
    found = {
        member["member_id"]: (
            member["process_id"],
            {
                role.upper(): "".join(
                    f"{name}:[{','.join(map(str, indexes))}]; "
                    for name, indexes in member["tasks"][role].items()
                )
                for role in ("active", "standby")
            },
        )
        for member in view["members"]
    }
    assert found == expected
    assert all(tasks["STANDBY"] for _, tasks in found.values()), found
    read = [
        (topic, index)
        for member in view["members"]
        for topic, indexes in member["partitions"].items()
        for index in indexes
    ]
    topics = (source, f"{group}-words-repartition")
    assert sorted(read) == [(topic, index) for topic in topics for index in range(3)]
    table = ours(peer, "describe", group)
    assert "topology epoch 0" in table
    talk.close()
