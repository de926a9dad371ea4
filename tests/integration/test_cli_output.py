"""With `--output json`, commands that change a cluster print exactly one document."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.objectstore.memory import MemoryStore
from tests.integration.test_broker_moves import GatedStore, create
from tests.support.cli import Cli, run_here
from tests.support.cluster import Cluster
from tests.support.hanging import HANGING_ID, produce_hanging
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, secure_cluster
from tests.support.steady import SteadyProducer


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster whose delegation tokens require a login and whose brokers do not abort hanging
    transactions.
    """
    async with secure_cluster(
        tmp_path,
        *("PLAINTEXT", "SASL_PLAINTEXT"),
        brokers=1,
        security={"delegation_token_secret_key": "a key of all brokers"},
        transaction_partition_verification_enable=False,
    ) as cluster:
        yield cluster


async def test_commands_that_change_the_cluster_print_one_document(
    cluster: Cluster, tmp_path: Path
) -> None:
    cli = Cli(cluster, tmp_path)

    async def check(command: str, expected: object, *more: str) -> None:
        """Run the command. `more`: arguments that contain paths."""
        printed = await cli.run(*command.split(), *more, "--output", "json")
        assert json.loads(printed) == expected, command

    await cli.run("topics", "create", "orders", "--partitions", "1")
    await cluster.until_served("orders")
    await asyncio.to_thread(produce_hanging, f"127.0.0.1:{cluster.broker.port}", "orders")
    abort = "transactions abort --topic orders --partition 0 --start-offset 0"
    hanging = {"topic": "orders", "partition": 0, "start_offset": 0, "producer_id": HANGING_ID}
    await check(f"{abort} --dry-run", {**hanging, "dry_run": True})
    await check(abort, {**hanging, "dry_run": False})
    await check("topics alter orders --partitions 3", {"name": "orders", "partitions": 3})

    config = {"resource": "orders", "name": "retention.ms"}
    alter = "configs alter --topic orders --set retention.ms"
    default = {**config, "old_value": "604800000", "new_value": "5000"}
    await check(f"{alter}=5000 --dry-run", [{**default, "dry_run": True}])
    await check(f"{alter}=5000", [{**default, "dry_run": False}])
    deleted = {**config, "old_value": "5000", "new_value": None, "dry_run": False}
    await check("configs alter --topic orders --delete retention.ms", [deleted])

    level = {"name": "share.version", "level": 0}
    await check("features downgrade share.version=0 --dry-run", [{**level, "dry_run": True}])
    await check("features downgrade share.version=0", [{**level, "dry_run": False}])
    await check("features upgrade share.version=1", [{**level, "level": 1, "dry_run": False}])

    password = cli.file("password", "secret")
    user = {"name": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 4_096}
    await check("users create alice --password-file", user, password)
    user = {"name": "alice", "mechanisms": ["SCRAM-SHA-512"]}
    await check("users delete alice --dry-run", {**user, "dry_run": True})
    await check("users delete alice --yes", {**user, "dry_run": False})
    login = cli.file(
        "admin.properties",
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username={BROKER_USER}\nsasl.password={BROKER_PASSWORD}\n",
    )
    port = cluster.broker.server.ports["SASL_PLAINTEXT"]
    admin = ("--bootstrap", f"127.0.0.1:{port}", "--command-config", login)
    token = json.loads(await cli.run("tokens", "create", *admin, "--json"))
    expired = {"token_id": token["token_id"], "owner": f"User:{BROKER_USER}"}
    expire = f"tokens expire {token['token_id']}"
    await check(f"{expire} --dry-run", {**expired, "dry_run": True}, *admin)
    await check(f"{expire} --yes", {**expired, "dry_run": False}, *admin)

    topic = {"name": "orders", "for_good": False, "topic_id": None, "until": None}
    await check("topics delete orders --dry-run", {**topic, "dry_run": True})
    await check("topics delete orders --yes", {**topic, "dry_run": False})

    certificates = tmp_path / "certificates"
    files = {
        "truststore": str(certificates / "ca.pem"),
        "broker_keystore": str(certificates / "broker.pem"),
        "client_keystores": [str(certificates / "client.pem")],
    }
    await check("certs dev", files, str(certificates))
    profile = {"name": "p", "bootstrap": "k:1", "command_config": "", "controller": "", "store": ""}
    await check("profile add p --bootstrap k:1", {**profile, "active": True})
    await check("profile use p", {**profile, "active": True})
    await check("profile remove p", {"name": "p"})


async def test_other_commands_print_only_one_document(cluster: Cluster, tmp_path: Path) -> None:
    cli = Cli(cluster, tmp_path)
    file = cli.file("topics.json", {"topics": [{"name": "orders", "partitions": 2}]})
    for command in (
        f"topics apply {file} --dry-run",
        f"topics apply {file}",
        "produce orders --value v",
        "topics fork orders copy",
        "groups reset-offsets billing --topic orders --to-latest --execute --yes",
        "groups delete-offsets billing --topic orders:0 --yes",
        "groups delete billing --dry-run",
        "groups delete billing --yes",
        "topics delete-records orders --all --dry-run",
        "topics delete-records orders --all --yes",
        "snapshots create s --topics orders",
        "snapshots restore s --as again --dry-run",
        "snapshots restore s --as again",
        "snapshots delete s --dry-run",
        "snapshots delete s --yes",
        "topics delete copy --dry-run",
        "topics delete copy --yes",
        "quotas set --user alice producer_byte_rate=5",
        "quotas delete --user alice --dry-run",
        "quotas delete --user alice",
        "elect --preferred",
        "balance --execute",
    ):
        printed = await cli.run(*command.split(), "--output", "json")
        assert isinstance(json.loads(printed), list | dict), command


async def test_move_commands_print_one_document(tmp_path: Path) -> None:
    store = MemoryStore()
    gate = GatedStore(store)
    async with Cluster(tmp_path, brokers=2, store=store, stores={0: gate}) as cluster:
        await create(cluster, "t", 0)
        cli = Cli(cluster, tmp_path)
        item = {"topic": "t", "partition": 0}
        moves = cli.file("moves.json", {"version": 1, "partitions": [{**item, "replicas": [1]}]})
        file = ("--reassignment-json-file", moves, "--json")
        rollback = {**item, "replicas": [0], "log_dirs": ["any"]}
        started = {
            "rollback": {"version": 1, "partitions": [rollback]},
            "partitions": [{**item, "replicas": [1], "error": None}],
        }
        producer = SteadyProducer(cluster.bootstrap, "t")
        await producer.until_acknowledged(5)
        gate.is_open.clear()
        for command, expected in (
            (("execute", "--dry-run"), {"dry_run": True, **started}),
            (("execute",), {"dry_run": False, **started}),
            (("cancel", "--dry-run"), [{**item, "result": "active", "error": None}]),
            (("cancel",), [{**item, "result": "cancelled", "error": None}]),
            (("cancel",), [{**item, "result": "not active", "error": None}]),
            (("cancel", "--dry-run"), [{**item, "result": "not active", "error": None}]),
        ):
            assert json.loads(await cli.run("reassign", *command, *file)) == expected, command
        gate.is_open.set()
        await producer.stop()

        refused = cli.file("refused.json", {"partitions": [{**item, "replicas": [77]}]})
        done = await asyncio.to_thread(
            run_here,
            *("reassign", "execute", "--json", "--reassignment-json-file", refused),
            PENSTOCK_BOOTSTRAP=cluster.bootstrap,
        )
        (failed,) = json.loads(done.stdout)["partitions"]
        assert failed == {**item, "replicas": [77], "error": failed["error"]}
        assert "INVALID_REPLICA_ASSIGNMENT" in failed["error"]
        assert (done.returncode, failed["error"] in done.stderr) == (1, True)

        member = await cli.run("quorum", "remove", "0", "--dry-run", "--json")
        assert json.loads(member) == {"node_id": 0, "dry_run": True}


async def test_failed_command_prints_no_document(cluster: Cluster) -> None:
    done = await asyncio.to_thread(
        run_here,
        *("topics", "alter", "none", "--partitions", "2", "--json"),
        PENSTOCK_BOOTSTRAP=cluster.bootstrap,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
