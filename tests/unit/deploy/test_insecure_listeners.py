"""Nodes reject listeners and controllers without authentication, unless operators allow them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.definition import Role
from penstock.deploy.node.config.exposure import InsecureControllers, InsecureListener, exposures
from penstock.deploy.node.config.load import load
from penstock.deploy.node.insecure import REMIND_INTERVAL_S, remind

STORE = ("--store", "s3://bucket?endpoint=http://127.0.0.1:1")
TLS = ("--ssl-keystore-location", "b.pem", "--ssl-truststore-location", "ca.pem")
SASL = ("--sasl-users-file", "users", "--sasl-inter-broker-username", "broker")
NODE_TLS = tuple(
    part
    for name in ("certificate", "key", "ca")
    for part in (f"--controller-ssl-{name}-location", f"{name}.pem")
)


def refusal(role: Role, arguments: Sequence[str]) -> str:
    """Return why a node rejects these settings; empty if it accepts them."""
    needed = () if role == "broker" else ("--metadata-log-dir", "/tmp/m")
    try:
        load(role, (*STORE, *needed, *arguments), {})
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--listeners", "127.0.0.1:9092,A://[::1]:9093,B://localhost:9094,C://127.9.9.9:1"),
        ("--listeners", "SASL_SSL://0.0.0.0:9092", *TLS, *SASL),
        ("--listeners", "SASL_PLAINTEXT://0.0.0.0:9092", *SASL),
        ("--listeners", "SSL://0.0.0.0:9092", "--ssl-client-auth", "required", *TLS),
        ("--listeners", "PLAINTEXT://0.0.0.0:9092", "--allow-insecure"),
        ("--allow-insecure", "--listeners", "PLAINTEXT://0.0.0.0:9092"),
        ("--allow-insecure", "true", "--listeners", "PLAINTEXT://0.0.0.0:9092"),
    ],
)
def test_brokers_accept_listeners_with_authentication_or_on_loopback(
    arguments: tuple[str, ...],
) -> None:
    assert refusal("broker", arguments) == ""


@pytest.mark.parametrize(
    ("arguments", "listener", "reason"),
    [
        (("--listeners", "0.0.0.0:9092"), "PLAINTEXT://0.0.0.0:9092", "PLAINTEXT has no"),
        (("--listeners", ":9092"), "PLAINTEXT://:9092", "PLAINTEXT has no"),
        (("--listeners", "A://b0.example:9092"), "A://b0.example:9092", "PLAINTEXT has no"),
        (("--listeners", "127.0.0.1:1,X://[::]:2"), "X://[::]:2", "PLAINTEXT has no"),
        (("--listeners", "SSL://10.0.0.1:1", *TLS), "SSL://10.0.0.1:1", "ssl.client.auth=none"),
        (
            ("--listeners", "SSL://10.0.0.1:1", "--ssl-client-auth", "requested", *TLS),
            "SSL://10.0.0.1:1",
            "ssl.client.auth=requested",
        ),
        (
            ("--allow-insecure", "false", "--listeners", "PLAINTEXT://0.0.0.0:9092"),
            "PLAINTEXT://0.0.0.0:9092",
            "PLAINTEXT has no",
        ),
    ],
)
def test_brokers_reject_listeners_without_authentication(
    arguments: tuple[str, ...], listener: str, reason: str
) -> None:
    reported = refusal("broker", arguments)
    assert f"the listener {listener} is open to other machines" in reported
    assert reason in reported
    for remedy in ("SASL_SSL", "ssl.client.auth=required", "127.0.0.1", "--allow-insecure"):
        assert remedy in reported


def test_controllers_require_tls_except_on_loopback() -> None:
    reported = refusal("controller", ("--listeners", "0.0.0.0:9093"))
    assert "the listener 0.0.0.0:9093 is open to other machines" in reported
    for remedy in ("controller.ssl.certificate.location", "127.0.0.1", "--allow-insecure"):
        assert remedy in reported
    assert refusal("controller", ("--listeners", "127.0.0.1:9093")) == ""
    assert refusal("controller", ("--listeners", "0.0.0.0:9093", *NODE_TLS)) == ""
    assert refusal("controller", ("--listeners", "0.0.0.0:9093", "--allow-insecure")) == ""


def test_insecure_listeners_can_be_allowed_by_variable_and_file(tmp_path: Path) -> None:
    arguments = (*STORE, "--listeners", "0.0.0.0:9092")
    file = tmp_path / "f.toml"
    file.write_text("allow.insecure = true\n")
    for given in (
        load("broker", arguments, {"PENSTOCK_ALLOW_INSECURE": "true"}),
        load("broker", (*arguments, "--config", str(file)), {}),
    ):
        (found,) = exposures(given.parts)
        assert isinstance(found, InsecureListener)
        assert found.listener == "PLAINTEXT://0.0.0.0:9092"


SASL_LISTENER = ("--listeners", "SASL_SSL://0.0.0.0:9092", *TLS, *SASL)
CERTIFICATES_LISTENER = (
    *("--listeners", "A://127.0.0.1:1,SSL://0.0.0.0:9092", "--ssl-client-auth", "required"),
    *TLS,
)


def controllers(*addresses: str) -> tuple[str, str]:
    return "--controller-quorum-bootstrap-servers", ",".join(addresses)


@pytest.mark.parametrize("listeners", [SASL_LISTENER, CERTIFICATES_LISTENER])
@pytest.mark.parametrize(
    ("named", "told"),
    [
        (("c0:9093",), "c0:9093 are"),
        (("10.0.0.1:9093", "c1:9093"), "10.0.0.1:9093, c1:9093 are"),
        (("127.0.0.1:9093", "[fd00::1]:9093"), "[fd00::1]:9093 are"),
        (("127.0.0.1.example:9093",), "127.0.0.1.example:9093 are"),
    ],
)
def test_brokers_with_secure_listeners_require_tls_to_remote_controllers(
    listeners: tuple[str, ...], named: tuple[str, ...], told: str
) -> None:
    arguments = (*listeners, *controllers(*named))
    text = refusal("broker", arguments)
    assert text.startswith("--controller-quorum-bootstrap-servers: the controllers")
    assert f"the controllers {told} not on loopback" in text
    for remedy in (
        *("controller.ssl.certificate.location", "controller.ssl.key.location"),
        *("controller.ssl.ca.location", "127.0.0.1", "--allow-insecure"),
    ):
        assert remedy in text
    assert refusal("broker", (*arguments, *NODE_TLS)) == ""
    assert refusal("broker", (*arguments, "--allow-insecure")) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        (*SASL_LISTENER, *controllers("127.0.0.1:1", "localhost:2", "[::1]:3", "127.9.9.9:4")),
        ("--listeners", "SASL_SSL://127.0.0.1:9092", *TLS, *SASL, *controllers("c0:9093")),
        ("--listeners", "127.0.0.1:9092", *controllers("c0:9093")),
    ],
)
def test_brokers_and_controllers_on_loopback_need_no_tls_between_them(
    arguments: tuple[str, ...],
) -> None:
    assert refusal("broker", arguments) == ""


def test_allowed_insecure_controllers_are_reported_with_the_listeners() -> None:
    listeners = ("--listeners", "PLAINTEXT://0.0.0.0:1,SASL_SSL://0.0.0.0:2", *TLS, *SASL)
    arguments = (*STORE, *listeners, *controllers("127.0.0.1:9093", "c1:9093"))
    listener, named = exposures(load("broker", (*arguments, "--allow-insecure"), {}).parts)
    assert isinstance(listener, InsecureListener)
    assert listener.listener == "PLAINTEXT://0.0.0.0:1"
    assert isinstance(named, InsecureControllers)
    assert named.controllers == ("c1:9093",)
    assert named.reason.startswith("SASL_SSL://0.0.0.0:2 authenticates clients")


def test_health_listeners_need_no_authentication() -> None:
    assert refusal("broker", ("--health-listener", "0.0.0.0:9404")) == ""


async def test_nodes_warn_at_startup_and_every_hour() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise asyncio.CancelledError

    found = [
        InsecureListener("A://0.0.0.0:1", "it is open", "close it"),
        InsecureControllers(("c0:1", "c1:1"), "no TLS", "use it"),
    ]
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await remind(found, sleep)
    assert waits == [REMIND_INTERVAL_S] * 3 == [3_600.0] * 3
    warnings = [
        {
            "event": "listener_insecure",
            "log_level": "warning",
            "listener": "A://0.0.0.0:1",
            "reason": "it is open",
            "next": "close it",
        },
        {
            "event": "controllers_insecure",
            "log_level": "warning",
            "controllers": ("c0:1", "c1:1"),
            "reason": "no TLS",
            "next": "use it",
        },
    ]
    assert logs == warnings * 3
    with capture_logs() as logs:
        await remind([], sleep)
    assert logs == []
