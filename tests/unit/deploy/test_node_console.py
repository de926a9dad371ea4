"""A node serves the web console only where no login is required, or where users log in."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.definition import Role
from penstock.deploy.node.config.load import load
from penstock.deploy.node.console import NodeConsole
from penstock.deploy.node.console_plan import ConsolePlan, plan_console

STORE = ("--store", "s3://bucket?endpoint=http://127.0.0.1:1")
READ = ("--console-access", "read", "--console-bootstrap-servers", "b:9092,c:9092")
LOOPBACK = ("--health-listener", "127.0.0.1:9404")
OPEN = ("--health-listener", "0.0.0.0:9404")
INSECURE = ("--allow-insecure",)
SASL = (
    *("--listeners", "A://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:2"),
    *("--sasl-users-file", "users", "--sasl-inter-broker-username", "broker"),
)
TLS = tuple(
    part
    for name in ("certificate", "key", "ca")
    for part in (f"--controller-ssl-{name}-location", f"{name}.pem")
)
USERS = """security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-256
sasl.username=console
sasl.password=hidden
"""


def plan(role: Role, arguments: Sequence[str]) -> ConsolePlan:
    needed = () if role == "broker" else ("--metadata-log-dir", "/tmp/m")
    return plan_console(load(role, (*STORE, *needed, *READ, *arguments), {}))


@pytest.fixture
def users(tmp_path: Path) -> tuple[str, str]:
    """Return client properties with a user for the console."""
    path = tmp_path / "console.properties"
    path.write_text(USERS)
    return "--console-command-config", str(path)


@pytest.mark.parametrize(
    ("role", "arguments", "reason"),
    [
        ("broker", (), "needs health.listener"),
        ("broker", OPEN, "everyone who reaches 0.0.0.0:9404 would see the cluster"),
        ("broker", (*LOOPBACK, *SASL), "clients of this broker authenticate"),
        ("broker", (*LOOPBACK, *SASL, *INSECURE), "clients of this broker authenticate"),
        ("controller", LOOPBACK, "a controller does not know whether the cluster has users"),
        ("broker", (*LOOPBACK, *TLS), "needs console.ssl.certificate.location"),
    ],
)
def test_a_console_without_authentication_is_rejected(
    role: Role, arguments: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        plan(role, arguments)


@pytest.mark.parametrize(
    ("role", "arguments", "reminders"),
    [
        ("broker", LOOPBACK, 0),
        ("broker", (*OPEN, *INSECURE), 1),
        ("controller", (*LOOPBACK, *INSECURE), 0),
        ("controller", (*OPEN, *INSECURE), 1),
    ],
)
def test_a_console_without_login_is_allowed_if_there_are_no_users(
    role: Role, arguments: tuple[str, ...], reminders: int
) -> None:
    found = plan(role, arguments)
    assert "--login" not in found.arguments
    assert len(found.insecure) == reminders


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_users_log_in_if_the_console_has_its_own_user(role: Role, users: tuple[str, str]) -> None:
    found = plan(role, (*OPEN, *users))
    assert "--login" in found.arguments
    assert (found.insecure, found.is_in_clear) == ((), True)
    assert not plan(role, (*LOOPBACK, *users)).is_in_clear


def test_the_console_gets_secrets_but_no_node_settings_in_its_environment() -> None:
    settings = {
        "PENSTOCK_SCHEMA_REGISTRY_URL": "http://registry:8081",
        "PENSTOCK_SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO": "me:s@crt",
    }
    store = "s3://bucket?endpoint=http://127.0.0.1:1&secret_key=hidden&access_key=a"
    wal_store = "s3://wals?endpoint=http://127.0.0.1:1"
    stores = {"PENSTOCK_STORE": store, "PENSTOCK_WAL_STORE": wal_store}
    config = load("broker", (*READ, *LOOPBACK), settings | stores)
    found = plan_console(config)
    assert not any("hidden" in text or "s@crt" in text for text in found.arguments)
    environment = found.environment({"PATH": "/bin", "PENSTOCK_NODE_ID": "7"})
    assert environment == {
        "PATH": "/bin",
        "PENSTOCK_BOOTSTRAP": "b:9092,c:9092",
        "PENSTOCK_CONTROLLER": "127.0.0.1:9093",
        **stores,
        "PENSTOCK_SCHEMA_REGISTRY": "http://me:s%40crt@registry:8081",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--cluster-id", "x", "--controller-quorum-voters", "0@a:1,1@b:2,2@c:3"), "a:1,b:2,c:3"),
        (("--controller-quorum-join-servers", "a:1"), "a:1"),
        (("--listeners", "0.0.0.0:9093"), "127.0.0.1:9093"),
    ],
)
def test_the_console_of_a_controller_follows_the_controllers(
    arguments: tuple[str, ...], expected: str
) -> None:
    found = plan("controller", (*LOOPBACK, *INSECURE, *arguments))
    assert found.variables["PENSTOCK_CONTROLLER"] == expected


async def test_the_error_of_a_console_that_fails_to_start_contains_its_log() -> None:
    """The console is not restarted at once."""
    console = NodeConsole(ConsolePlan(("--no-such-option",), {}, is_in_clear=False))
    try:
        assert "the console did not start; the log" in await console.take(b"GET", 0)
        assert "the console has ended" in await console.take(b"GET", 0)
    finally:
        await console.stop()


def test_a_console_connects_to_controllers_with_its_own_certificate() -> None:
    own = ("--console-ssl-certificate-location", "a.pem", "--console-ssl-key-location", "k.pem")
    variables = plan("broker", (*LOOPBACK, *TLS, *own)).variables
    named = {name: value for name, value in variables.items() if "CONTROLLER_SSL" in name}
    assert named == {
        "PENSTOCK_CONTROLLER_SSL_CERTIFICATE_LOCATION": "a.pem",
        "PENSTOCK_CONTROLLER_SSL_KEY_LOCATION": "k.pem",
        "PENSTOCK_CONTROLLER_SSL_CA_LOCATION": "ca.pem",
    }
