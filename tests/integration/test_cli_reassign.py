"""`penstock reassign` and `penstock elect` with real files against a real cluster."""

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.errors import ExpectedError
from penstock.base.ids import NodeId
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import KafkaFailed
from tests.support.cli import Cli, run_here
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S, until


async def test_reassignment_is_generated_executed_verified_rolled_back_and_traced(
    tmp_path: Path,
) -> None:
    security = SecurityConfig(authorizer=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS")
    async with Cluster(tmp_path, brokers=3, security=security) as cluster:
        rows = [[NodeId(0), NodeId(1)]] * 4
        await cluster.broker.client.create_topics(
            CreateTopics(topics=[NewTopic(name="tp_re_01", assignment=rows)])
        )
        for index in range(4):
            await cluster.until_served("tp_re_01", index)
        cli = Cli(cluster, tmp_path)
        topics = cli.file("topics-to-move.json", {"topics": [{"topic": "tp_re_01"}], "version": 1})
        out = await cli.run(
            "reassign", "generate", "--topics-to-move-json-file", topics, "--broker-list", "1,2"
        )
        lines = out.splitlines()
        assert lines[0] == "Current partition replica assignment"
        assert json.loads(lines[1])["partitions"][3] == {
            "topic": "tp_re_01",
            "partition": 3,
            "replicas": [0, 1],
            "log_dirs": ["any", "any"],
        }
        assert lines[3] == "Proposed partition reassignment configuration"
        proposed = json.loads(lines[4])
        assert {tuple(sorted(item["replicas"])) for item in proposed["partitions"]} == {(1, 2)}

        out = await cli.run(
            "reassign", "generate", "--topics-to-move-json-file", topics, "--broker-list", "1,2",
            "--output", "json",
        )  # fmt: skip
        assert json.loads(out) == proposed

        plan = cli.file("plan.json", proposed)
        out = await cli.run("reassign", "execute", "--reassignment-json-file", plan, "--dry-run")
        assert "would reassign tp_re_01-0 from 0,1 to " in out
        out = await cli.run("reassign", "cancel", "--reassignment-json-file", plan, "--dry-run")
        assert out == "would cancel the reassignment of no partition\n"
        out = await cli.run("reassign", "verify", "--reassignment-json-file", plan, code=1)
        assert out.count("There is no active reassignment of partition") == 4
        out = await cli.run("reassign", "execute", "--reassignment-json-file", plan)
        lines = out.splitlines()
        assert lines[0] == "Current partition replica assignment"
        rollback = cli.file("rollback.json", lines[2])
        assert lines[4] == "Save this to use as the --reassignment-json-file option during rollback"
        assert (
            lines[5] == "Successfully started partition reassignments for"
            " tp_re_01-0,tp_re_01-1,tp_re_01-2,tp_re_01-3"
        )
        await until(lambda: {cluster.leader_of("tp_re_01", index) for index in range(4)} == {1, 2})
        out = await cli.run("reassign", "verify", "--reassignment-json-file", plan)
        assert out.splitlines()[1] == "Reassignment of partition tp_re_01-0 is completed."
        out = await cli.run("reassign", "verify", "--reassignment-json-file", plan, "--json")
        assert json.loads(out)[0] == {
            "topic": "tp_re_01",
            "partition": 0,
            "completed": True,
            "status": "Reassignment of partition tp_re_01-0 is completed.",
        }
        out = await cli.run("reassign", "cancel", "--reassignment-json-file", plan)
        assert out == "None of the specified partition reassignments are active.\n"

        await cli.run("reassign", "execute", "--reassignment-json-file", rollback)
        await cli.run("reassign", "execute", "--reassignment-json-file", rollback, "--additional")
        await until(lambda: {cluster.leader_of("tp_re_01", index) for index in range(4)} == {0, 1})
        one = cli.file("one.json", {"partitions": [{"topic": "tp_re_01", "partition": 2}]})
        moved = [index for index in range(4) if cluster.leader_of("tp_re_01", index) == 1]
        index = moved[0]
        with capture_logs() as logs:
            out = await cli.run("elect", "--preferred")
        assert f"tp_re_01-{index}" in out
        changes = [line for line in logs if line["event"] == "admin_change"]
        assert [(line["change"], line["resources"]) for line in changes] == [
            ("leaders_elected", [f"tp_re_01-{number}" for number in moved])
        ]
        assert {cluster.leader_of("tp_re_01", index) for index in range(4)} == {0}
        out = await cli.run("elect", "--preferred", "--path-to-json-file", one)
        assert out == "Valid replica already elected for partitions tp_re_01-2\n"
        out = await cli.run("elect", "--preferred")
        assert out == "Valid replica already elected for all partitions\n"
        out = await cli.run("elect", "--preferred", "--json")
        assert json.loads(out) == []
        keys = [{"topic": "tp_re_01", "partition": index} for index in (2, 9)]
        some = cli.file("some.json", {"partitions": keys})
        done = await asyncio.to_thread(
            run_here,
            *("elect", "--preferred", "--path-to-json-file", some, "--json"),
            PENSTOCK_BOOTSTRAP=cluster.bootstrap,
        )
        there, absent = json.loads(done.stdout)
        assert (done.returncode, absent["error"] in done.stderr) == (1, True)
        assert there == {**keys[0], "result": "not needed", "error": None}
        assert absent == {**keys[1], "result": "failed", "error": absent["error"]}
        assert "UNKNOWN_TOPIC_OR_PARTITION" in absent["error"]

        async with asyncio.timeout(PATIENCE_S):
            while (
                move := json.loads(
                    await cli.run("reassign", "trace", f"tp_re_01-{index}", "--json")
                )
            )["total_ms"] is None:
                pass
        assert (move["source"], move["target"], [step["number"] for step in move["steps"]]) == (
            1,
            0,
            [1, 2, 3, 4, 4, 5, 6, 6],
        )
        assert all(step["took_ms"] is not None for step in move["steps"])
        assert "forced the upload" in await cli.run("reassign", "trace", f"tp_re_01-{index}")


async def test_invalid_reassign_arguments_are_refused_with_an_explanation(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=1) as cluster:
        await cluster.broker.client.create_topics(
            CreateTopics(topics=[NewTopic(name="t", partitions=1)])
        )
        cli = Cli(cluster, tmp_path)
        topics = cli.file("topics.json", {"topics": [{"topic": "t"}], "version": 1})
        with pytest.raises(UsageError, match=r"brokers \[5\] do not exist"):
            await cli.run(
                "reassign", "generate", "--topics-to-move-json-file", topics, "--broker-list", "0,5"
            )
        missing = cli.file("missing.json", {"topics": [{"topic": "nope"}], "version": 1})
        with pytest.raises(KafkaFailed, match="nope"):
            await cli.run(
                "reassign", "generate", "--topics-to-move-json-file", missing, "--broker-list", "0"
            )
        plan = cli.file(
            "plan.json",
            {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [9]}]},
        )
        with pytest.raises(KafkaFailed, match=r"t-0: .*not registered.*INVALID_REPLICA_ASSIGNMENT"):
            await cli.run("reassign", "execute", "--reassignment-json-file", plan)
        absent = cli.file(
            "absent.json",
            {"version": 1, "partitions": [{"topic": "t", "partition": 4, "replicas": [0]}]},
        )
        with pytest.raises(KafkaFailed, match="t-4"):
            await cli.run("reassign", "execute", "--reassignment-json-file", absent)
        with pytest.raises(UsageError, match="cannot be read"):
            await cli.run(
                "reassign", "verify", "--reassignment-json-file", str(tmp_path / "none.json")
            )
        with pytest.raises(UsageError, match="--preferred"):
            await cli.run("elect")
        with pytest.raises(ExpectedError, match="has no planned move"):
            await cli.run("reassign", "trace", "t-0")
        with pytest.raises(ExpectedError, match="does not exist"):
            await cli.run("reassign", "trace", "t-7")
    with pytest.raises(KafkaFailed, match="no broker responds"):
        await cli.run("elect", "--preferred")
