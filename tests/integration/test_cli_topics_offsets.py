"""`penstock topics offsets` against real brokers, each of which leads some partitions."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import KafkaFailed
from tests.support.cli import Cli, run_here
from tests.support.clients import create_topic
from tests.support.cluster import Cluster


@pytest.fixture
async def cli(tmp_path: Path) -> AsyncIterator[Cli]:
    async with Cluster(tmp_path, brokers=2) as cluster:
        for topic, partitions in (("orders", 4), ("empty", 1)):
            await asyncio.to_thread(
                create_topic, cluster.bootstrap, topic, partitions, retention_ms="-1"
            )
        yield Cli(cluster, tmp_path)


async def test_offsets_are_listed_for_a_time(cli: Cli) -> None:
    for partition, day in ((0, 1), (3, 1), (3, 3), (3, 2)):
        at = ("-p", str(partition), "--timestamp", f"2026-01-0{day}")
        await cli.run("produce", "orders", *at, "--value", "x")

    async def offsets(*arguments: str) -> dict[tuple[str, int], int | None]:
        found = json.loads(await cli.run("topics", "offsets", *arguments, "--json"))
        return {(item["topic"], item["partition"]): item["offset"] for item in found}

    latest = {("orders", index): end for index, end in enumerate((1, 0, 0, 3))}
    assert await offsets() == {("empty", 0): 0} | latest
    assert await offsets("orders", "-p", "3", "-p", "0") == {("orders", 0): 1, ("orders", 3): 3}
    assert await offsets("empty", "orders", "-p", "0") == {("empty", 0): 0, ("orders", 0): 1}
    for time, expected in (
        ("earliest", (0, 0, 0, 0)),
        ("max-timestamp", (0, None, None, 1)),
        ("latest-tiered", (None, None, None, None)),
        ("2026-01-02", (None, None, None, 1)),
        ("2026-01-01T01:00:00+01:00", (0, None, None, 0)),
        ("1767225600001", (None, None, None, 1)),
    ):
        assert await offsets("orders", "--time", time) == {
            ("orders", index): offset for index, offset in enumerate(expected)
        }, time
    assert "│ orders │         1 │ -      │" in await cli.run(
        *("topics", "offsets", "orders", "--time", "max-timestamp")
    )
    for wrong, error, said in (
        (("--time", "soon"), UsageError, "one of latest, earliest, max-timestamp"),
        (("--time", "-7"), UsageError, "one of latest"),
        (("-p", "9"), UsageError, "--partition 9: orders has 0,1,2,3"),
    ):
        with pytest.raises(error, match=said):
            await cli.run("topics", "offsets", "orders", *wrong)
    with pytest.raises(KafkaFailed, match="did you mean orders"):
        await cli.run("topics", "offsets", "order")


async def test_all_commands_accept_the_same_time_formats(cli: Cli) -> None:
    for day in (1, 2, 3):
        at = ("-p", "0", "--timestamp", f"2026-01-0{day}")
        await cli.run("produce", "orders", *at, "--value", str(day))
    for time in ("2026-01-02", "2026-01-02 00:00:00.000", "2026-01-01T23:00:00-01:00"):
        found = json.loads(await cli.run("topics", "offsets", "orders", "--time", time, "--json"))
        assert found[0]["offset"] == 1, time
        delete = ("topics", "delete-records", "orders", "--before-time", time)
        found = json.loads(await cli.run(*delete, "--dry-run", "--json"))
        assert found[0]["new_earliest"] == 1, time
        shown = await cli.run("consume", "orders", "--from-time", time, "--until-end")
        assert shown.splitlines() == ["2", "3"], time
    await cli.run("topics", "fork", "orders", "fork", "--at-time", "2026-01-02T02:00:00+02:00")
    assert await cli.run("consume", "fork", "--from-beginning", "--until-end") == "1\n"
    for command in (
        ("fork", "orders", "f", "--at-time"),
        ("delete-records", "orders", "--before-time"),
    ):
        with pytest.raises(
            UsageError, match="'soon' is invalid: use a format such as 2026-01-31T12"
        ):
            await cli.run("topics", *command, "soon")


async def test_partition_errors_are_listed_below_the_table(cli: Cli) -> None:
    """An error message inside a cell would make the table wider than the terminal."""
    for partition in ("0", "1"):
        await cli.run("produce", "orders", "-p", partition, "--value", "x")
    command = ("topics", "delete-records", "orders", "--before-offset", "1", "--yes")
    done = await asyncio.to_thread(run_here, *command, "--bootstrap", cli.bootstrap)
    assert done.returncode == 1
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in done.stdout.splitlines()
        if line.startswith("│")
    ]
    assert rows == [
        ["0", "0", "1", "1"],
        ["1", "0", "1", "1"],
        ["2", "0", "0", "0"],
        ["3", "0", "0", "0"],
    ]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [("OFFSET_OUT_OF_RANGE" in line, "orders-2" in line) for line in errors] == [
        (True, True),
        (True, False),
    ]


async def test_numbers_out_of_range_are_rejected(cli: Cli) -> None:
    """Neither librdkafka nor the protocol can represent them."""
    for command in (
        ("topics", "create", "many", "--partitions", "99999999999"),
        ("topics", "create", "many", "--replication-factor", "-7"),
        ("topics", "alter", "orders", "--partitions", "99999999"),
        ("topics", "delete-records", "orders", "--before-offset", "9" * 20, "--yes"),
        ("produce", "orders", "--value", "x", "--partition", "99999999999"),
        ("consume", "orders", "--offset", "9" * 20, "--timeout", "1"),
    ):
        with pytest.raises(UsageError, match=r"range|greater|big"):
            await cli.run(*command)
    penstock = (sys.executable, "-m", "penstock")
    wanted = (*penstock, "topics", "offsets", "orders", "-b", cli.bootstrap, "--time", "9" * 20)
    done = await asyncio.to_thread(
        subprocess.run, wanted, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ListOffsetsRequest")
    assert "out of range" in done.stderr
    assert done.stderr.count("\n") == 1
