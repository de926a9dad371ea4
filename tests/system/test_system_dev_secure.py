"""`penstock dev --secure`: TLS and SCRAM for clients, ACLs, and TLS between nodes."""

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.deploy.clients.security import ClientSecurity, read_file
from penstock.deploy.local.handle import LocalCluster
from tests.support.dev_cluster import PENSTOCK, DevCluster, penstock
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.system

DOCTOR = ("doctor", "--accept", "controller-disk-slow", "--accept", "store-slow")
"""Excludes the speed of the test machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with DevCluster(["--secure", "--topics", "words:2", "--log-level", "error"]) as cluster:
        yield cluster


def directory_of(cluster: LocalCluster) -> Path:
    return Path(cluster.state().command_config).parent


def admin_of(cluster: LocalCluster) -> ClientSecurity:
    return read_file(Path(cluster.state().command_config))


def sourced(
    cluster: LocalCluster, *arguments: str, given: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a shell that has sourced the environment file of the cluster."""
    words = shlex.join((*PENSTOCK, *arguments))
    return subprocess.run(
        ("bash", "-c", f". {directory_of(cluster) / 'environment'} && {words}"),
        input=given,
        capture_output=True,
        text=True,
        env=os.environ | {"PENSTOCK_STATE_FILE": str(cluster.state_path)},
        timeout=PATIENCE_S,
        check=False,
    )


def why_refused(
    bootstrap: str, topic: str, awaited: str = "", limit_s: float = PATIENCE_S, **settings: Any
) -> str:
    """Return the error of a produced record, or "" if it is acknowledged. awaited: an error of the
    client after which the outcome of the record is not awaited. limit_s: of the record.
    """
    errors: list[str] = []
    named = {name.replace("_", "."): value for name, value in settings.items()}
    limits = {
        "message.timeout.ms": int(limit_s * 1_000),
        "error_cb": lambda error: errors.append(error.name()),
    }
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **limits, **named})
    reports: list[str] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: reports.append(str(error or "")))
    wait_until(lambda: producer.flush(0.1) == 0 or awaited in errors, 2 * PATIENCE_S)
    producer.purge()
    return f"{reports[:1]} {errors}" if reports != [""] else ""


def test_commands_work_only_with_the_client_files(cluster: LocalCluster) -> None:
    state = cluster.state()
    assert f" command-config={state.command_config} " in cluster.ready_line
    config = ("--command-config", state.command_config)
    sent = penstock(cluster, *config, "produce", "words", given="one\ntwo\n")
    assert (sent.returncode, sent.stderr) == (0, "2 records acknowledged\n")
    read = sourced(cluster, "consume", "words", "--from-beginning", "--max-messages", "2")
    assert sorted(read.stdout.split()) == ["one", "two"]
    for command in (("quorum", "describe"), ("nodes",)):
        assert sourced(cluster, *command).returncode == 0
        found = penstock(cluster, *command)
        assert found.returncode == 0, (command, found.stderr)
    examined = penstock(cluster, *DOCTOR)
    assert "2 addresses checked, 2 of them reach the right broker" in examined.stdout
    assert examined.returncode == 0, examined.stdout
    named = ("quorum", "describe", "--controller", state.controller)
    assert penstock(cluster, *named).returncode == 0
    without = penstock(None, *named)
    assert (without.returncode, "if it uses TLS, set controller.ssl" in without.stderr) == (1, True)
    address = cluster.bootstrap.partition(",")[0]
    listing = ("topics", "list", "--bootstrap", address)
    assert penstock(cluster, *listing).returncode == 0
    without = penstock(None, *listing)
    assert (without.returncode, "set security.protocol=SSL" in without.stderr) == (1, True)


def test_unauthenticated_and_untrusting_clients_are_refused(cluster: LocalCluster) -> None:
    good = admin_of(cluster).properties()
    reported = "words"
    assert why_refused(cluster.bootstrap, reported, **good) == ""
    assert "_MSG_TIMED_OUT" in why_refused(cluster.bootstrap, reported, limit_s=4)
    wrong = good | {"sasl.password": "wrong"}
    expected = "_AUTHENTICATION"
    assert expected in why_refused(cluster.bootstrap, reported, expected, **wrong)
    untrusted = good | {"ssl.ca.location": str(directory_of(cluster) / "nodes" / "ca.crt")}
    assert "_SSL" in why_refused(cluster.bootstrap, reported, "_SSL", **untrusted)


def test_user_has_only_the_rights_of_its_acls(cluster: LocalCluster) -> None:
    assert sourced(cluster, "topics", "create", "acls").returncode == 0
    password = directory_of(cluster) / "alice"
    password.write_text("secret of alice\n")
    created = sourced(cluster, "users", "create", "alice", "--password-file", str(password))
    assert created.returncode == 0, created.stderr
    alice = admin_of(cluster).properties() | {
        "sasl.username": "alice",
        "sasl.password": "secret of alice",
    }
    assert "uthoriz" in why_refused(cluster.bootstrap, "acls", **alice)
    added = sourced(
        cluster,
        "acls",
        "add",
        "--topic",
        "acls",
        "--principal",
        "User:alice",
        "--operation",
        "write",
    )
    assert added.returncode == 0, added.stderr
    # Each broker learns of the ACL on its own.
    wait_until(lambda: why_refused(cluster.bootstrap, "acls", **alice) == "")


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_printed_snippets_run_unchanged(cluster: LocalCluster, client: str) -> None:
    topic = f"from-{client}"
    shown = subprocess.run(
        (*PENSTOCK, "snippets", client, "--topic", topic),
        capture_output=True,
        text=True,
        env=os.environ | {"PENSTOCK_STATE_FILE": str(cluster.state_path)},
        check=True,
    )
    assert sourced(cluster, "topics", "create", topic).returncode == 0
    done = subprocess.run(
        [sys.executable, "-c", shown.stdout],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "b'k' b'hello'\n", done.stderr


def test_java_and_kcat_snippets_contain_the_security_settings(cluster: LocalCluster) -> None:
    java = sourced(cluster, "snippets", "java").stdout
    properties = Path(cluster.state().command_config).read_text()
    assert properties in java
    assert "ScramLoginModule required" in properties
    security = admin_of(cluster)
    kcat = sourced(cluster, "snippets", "kcat").stdout
    assert f"-X sasl.password={security.password} -X ssl.ca.location={security.ca}" in kcat
    librdkafka = dict(
        line.split("=", 1)
        for line in (directory_of(cluster) / "librdkafka.properties").read_text().splitlines()
    )
    assert librdkafka == security.properties()


@pytest.mark.parametrize(
    "line",
    [
        "top --once --interval 0.1",
        " ".join(DOCTOR),
        "topics describe words --size",
        "topics fork words forked",
        "topics delete-records words --all --yes",
        "snapshots create nightly --topics words",
        "transactions list",
        "transactions find-hanging",
        "features list",
        "configs describe --broker 0",
        "acls list",
        "users list",
        "elect --preferred",
    ],
)
def test_commands_use_the_client_properties_of_the_environment(
    cluster: LocalCluster, line: str
) -> None:
    done = sourced(cluster, *line.split())
    assert done.returncode == 0, done.stdout + done.stderr


def test_killed_broker_is_restarted(cluster: LocalCluster) -> None:
    victim = cluster.brokers()[1]
    cluster.kill([victim])
    cluster.wait_for_new([victim])
    assert sourced(cluster, "topics", "list").returncode == 0


def test_only_the_owner_can_read_keys_and_passwords(cluster: LocalCluster) -> None:
    directory = directory_of(cluster)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    secrets = [directory / name for name in ("users", "broker.pem", "client.properties")]
    for path in [*secrets, *(directory / "nodes").glob("*.key")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_restarted_cluster_reuses_the_passwords_in_its_directory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--secure", "--store", f"file:{tmp_path / 'd'}", "--brokers", "1"]
    passwords: list[str] = []
    for _ in range(2):
        with DevCluster([*arguments, "--log-level", "error"]) as cluster:
            assert directory_of(cluster) == tmp_path / "d" / "security"
            passwords.append(admin_of(cluster).password)
            assert sourced(cluster, "topics", "list").returncode == 0
    assert passwords[0] == passwords[1]
    shown = capfd.readouterr().err
    assert "sasl.password=***" in shown
    assert passwords[0] not in shown


def test_single_process_cluster_is_secure_too() -> None:
    with DevCluster(["--secure", "--store", "memory", "--log-level", "error"]) as cluster:
        assert sourced(cluster, "produce", "t", given="one\n").returncode == 0
        assert sourced(cluster, "quorum", "describe").returncode == 0
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(
                timeout=2
            )
