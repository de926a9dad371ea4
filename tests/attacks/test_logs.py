"""Attacks on logs: names that control a terminal or imitate log lines, log levels that hide the
audit log, and failed handshakes that fill the disk.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.scram import ScramMechanism, salted_password
from penstock.broker.handlers.configs.loggers import LOGGERS
from penstock.controller.metadata.configs import BROKER_LOGGER_RESOURCE
from penstock.deploy.node import lifeline
from penstock.objectstore.directory import DirectoryStore
from penstock.protocol import apis
from penstock.protocol.gen import (
    alter_client_quotas,
    alter_user_scram_credentials,
    incremental_alter_configs,
)
from penstock.protocol.sasl.mechanisms import plain_message
from tests.support.attacker import Attacker
from tests.support.broker_process import broker_process
from tests.support.certs import Authority
from tests.support.child_process import killed_at_end
from tests.support.cluster import Cluster
from tests.support.ports import free_port
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, SecureFiles
from tests.support.terminal import HOSTILE, check_harmless, on_terminal
from tests.support.waiting import PATIENCE_S, until, wait_until

SCRAM = ScramMechanism.SCRAM_SHA_256
STYLING = re.compile("\x1b\\[[0-9]+m")
HANDSHAKES = 50


def test_hostile_names_are_escaped_in_text_logs() -> None:
    """Hostile names in a string, a list, an object and an exception; each event is one line."""
    code = (
        "import structlog\n"
        "from penstock.deploy.node import logs\n"
        "logs.configure('info')\n"
        f"name = {HOSTILE!r}\n"
        "log = structlog.get_logger('x')\n"
        "log.info('one', name=name, names=[name], mapped={name: name}, error=ValueError(name))\n"
        "try:\n"
        "    raise ValueError(name)\n"
        "except ValueError as error:\n"
        "    log.error('two', exc_info=error)\n"
    )
    text = STYLING.sub("", on_terminal([sys.executable, "-c", code]).decode())
    check_harmless(text)
    lines = text.splitlines()
    assert "one" in lines[0]
    assert "two" in lines[1]
    assert "Traceback" in text
    assert all(line.startswith("    ") for line in lines[2:]), lines


def test_hostile_names_are_escaped_in_json_logs() -> None:
    """Runs in its own process, because structlog is configured once per process."""
    code = (
        "import structlog\n"
        "from penstock.deploy.node import logs\n"
        "logs.to_stderr('info')\n"
        f"name = {HOSTILE!r}\n"
        "structlog.get_logger('x').info('one', client_id=name, names=[name])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=True)
    (line,) = done.stderr.decode().splitlines()
    check_harmless(line)
    assert json.loads(line)["client_id"] == HOSTILE


def altering(*loggers: str) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    changes = [incremental_alter_configs.AlterableConfig(name, 0, "FATAL") for name in loggers]
    resource = incremental_alter_configs.AlterConfigsResource(BROKER_LOGGER_RESOURCE, "7", changes)
    return incremental_alter_configs.IncrementalAlterConfigsRequest([resource])


def limiting(user: str) -> alter_client_quotas.AlterClientQuotasRequest:
    entity = alter_client_quotas.EntityData("user", user)
    rate = alter_client_quotas.OpData("producer_byte_rate", 1_000)
    return alter_client_quotas.AlterClientQuotasRequest(
        [alter_client_quotas.EntryData([entity], [rate])]
    )


async def test_the_audit_log_cannot_be_silenced(tmp_path: Path) -> None:
    """A super user sets every logger to FATAL and makes changes, and other users' requests are
    denied: the log contains all of it.
    """
    files = SecureFiles(tmp_path / "security")
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.users.file": str(files.users),
        "sasl.inter.broker.username": BROKER_USER,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{BROKER_USER}",
    }
    store = tmp_path / "store"
    async with (
        Cluster(tmp_path, brokers=0, store=DirectoryStore(str(store))) as cluster,
        broker_process(cluster, f"file:{store}", settings) as broker,
        Attacker.connected(broker.port) as admin,
        Attacker.connected(broker.port) as stranger,
        Attacker.connected(broker.port) as user,
    ):
        await admin.log_in("PLAIN", plain_message(BROKER_USER, BROKER_PASSWORD))
        made = alter_user_scram_credentials.ScramCredentialUpsertion(
            HOSTILE, 1, 4_096, b"salt", salted_password(SCRAM, "secret", b"salt", 4_096)
        )
        request = alter_user_scram_credentials.AlterUserScramCredentialsRequest([], [made])
        (result,) = (
            await admin.send_request(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
        ).results
        assert not result.error_code, result
        (result,) = (
            await admin.send_request(apis.INCREMENTAL_ALTER_CONFIGS, 1, altering(*LOGGERS))
        ).responses
        assert not result.error_code, result
        (result,) = (
            await admin.send_request(apis.ALTER_CLIENT_QUOTAS, 1, limiting("mallory"))
        ).entries
        assert not result.error_code, result
        await stranger.log_in("PLAIN", plain_message("mallory", "wrong"))
        assert not (await user.log_in("PLAIN", plain_message(HOSTILE, "secret"))).error_code
        await user.send_request(apis.INCREMENTAL_ALTER_CONFIGS, 1, altering(*LOGGERS))
        (result,) = (
            await admin.send_request(apis.INCREMENTAL_ALTER_CONFIGS, 1, altering("audit"))
        ).responses
        assert "does not exist" in str(result.error_message)
        audit = ("admin_change", "authentication_failed", "authorization_denied")
        await until(lambda: len(broker.events(*audit)) == 5)
        made_user, changed, limited, failed, denied = broker.events(*audit)
    assert made_user["change"] == "users_altered"
    assert changed["resources"] == ["loggers of broker 7"]
    assert (limited["change"], limited["resources"]) == ("quotas_altered", ["user=mallory"])
    assert failed["reason"] == "the user or the password is wrong"
    check_harmless(denied["principal"])


def test_failed_handshakes_do_not_fill_the_controller_log(tmp_path: Path) -> None:
    """By default, gRPC writes a line for each."""
    files = Authority(tmp_path / "certs").make("penstock-controller")
    port = free_port()
    flags = {
        "store": f"file:{tmp_path / 'store'}",
        "metadata-log-dir": str(tmp_path / "data"),
        "listeners": f"127.0.0.1:{port}",
    }
    command = [sys.executable, "-P", "-m", "penstock.deploy.cli", "controller"]
    for name, value in flags.items():
        command += [f"--{name}", value]
    environment = os.environ | {lifeline.PARENT_VARIABLE: str(os.getpid())} | files.environment
    errors = tmp_path / "stderr"
    with (
        errors.open("w") as file,
        killed_at_end(subprocess.Popen(command, env=environment, stderr=file)) as process,
    ):

        def shake() -> None:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as stranger:
                stranger.sendall(b"\x16\x03\x01garbage" * 10)
                while stranger.recv(4_096):
                    pass

        def is_open() -> bool:
            try:
                shake()
            except ConnectionRefusedError:
                return False
            return True

        try:
            wait_until(is_open)
            for _ in range(HANDSHAKES):
                shake()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
    lines = errors.read_text().splitlines()
    assert len(lines) < HANDSHAKES, lines
    assert not [line for line in lines if "Handshake failed" in line]
