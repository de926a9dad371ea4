"""Settings of individual listeners: names, precedence, and error messages."""

from pathlib import Path

import pytest

from penstock.base.settings import HIDDEN, Kind
from penstock.broker.config import BrokerConfig
from penstock.broker.dynamic_settings import BrokerSettings, is_dynamic
from penstock.broker.listener_settings import (
    listener_field,
    listener_key_problem,
    listener_settings,
)
from penstock.broker.security.config import SecurityConfig
from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.definition import listener_setting_of_variable, variable_of
from penstock.deploy.node.config.effective import Effective
from penstock.deploy.node.config.load import load
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig

FILE = """
listeners = ["IN://127.0.0.1:0", "SASL_SSL://127.0.0.1:0", "OUT_2://127.0.0.1:0"]
listener.security.protocol.map = "IN:SSL,OUT_2:SASL_SSL"
ssl.keystore.location = "common.pem"
ssl.client.auth = "required"
ssl.truststore.location = "ca.pem"
sasl.enabled.mechanisms = "SCRAM-SHA-512"
sasl.users.file = "users"
connections.max.reauth.ms = 5
"""


def loaded(
    tmp_path: Path, *lines: str, variables: dict[str, str] | None = None, sets: tuple[str, ...] = ()
) -> Effective:
    path = tmp_path / "f.toml"
    path.write_text("\n".join((FILE, *lines)))
    flags = [part for text in sets for part in ("--set", text)]
    arguments = ("--store", "file:x", "--config", str(path), *flags)
    return load("broker", arguments, variables or {})


def refusal(
    tmp_path: Path, *lines: str, variables: dict[str, str] | None = None, sets: tuple[str, ...] = ()
) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, *lines, variables=variables, sets=sets)
    return str(caught.value)


def test_the_value_of_a_listener_overrides_the_general_value(tmp_path: Path) -> None:
    """Values come from the file, --set and variables, each of which overrides the previous one."""
    effective = loaded(
        tmp_path,
        'listener.name.out_2.sasl.enabled.mechanisms = ["PLAIN", "SCRAM-SHA-256"]',
        'listener.name.in.ssl.client.auth = "requested"',
        'listener.name.sasl_ssl.connections.max.reauth.ms = "1h"',
        variables={
            "PENSTOCK_LISTENER_NAME_OUT_2_SSL_KEYSTORE_LOCATION": "out.pem",
            "PENSTOCK_LISTENER_NAME_SASL_SSL_SSL_KEY_PASSWORD": "hush",
            "PENSTOCK_LISTENER_NAME_IN_SSL_CLIENT_AUTH": "none",
        },
        sets=("listener.name.out_2.sasl.enabled.mechanisms=PLAIN",),
    )
    config = effective.part(SecurityConfig)
    found = {name: config.of_listener(name) for name in ("IN", "SASL_SSL", "OUT_2")}
    assert {name: one.sasl_enabled_mechanisms for name, one in found.items()} == {
        "IN": ("SCRAM-SHA-512",),
        "SASL_SSL": ("SCRAM-SHA-512",),
        "OUT_2": ("PLAIN",),
    }
    assert found["OUT_2"].ssl_keystore_location == "out.pem"
    assert found["SASL_SSL"].ssl_keystore_location == "common.pem"
    assert (found["SASL_SSL"].ssl_key_password, found["IN"].ssl_key_password) == ("hush", "")
    assert [one.connections_max_reauth_ms for one in found.values()] == [5, 3_600_000, 5]
    assert found["IN"].ssl_client_auth == "none"
    assert config.listeners_with_tls() == ["IN", "OUT_2", "SASL_SSL"]
    shown = {name: (value.shown, value.place) for name, value in effective.values.items()}
    assert shown["listener.name.sasl_ssl.ssl.key.password"] == (
        HIDDEN,
        "variable PENSTOCK_LISTENER_NAME_SASL_SSL_SSL_KEY_PASSWORD",
    )
    assert shown["listener.name.sasl_ssl.connections.max.reauth.ms"][0] == "1h"


def test_sasl_listeners_request_certificates_only_by_their_own_setting() -> None:
    config = SecurityConfig(
        ssl_client_auth="required", listener_values=(("listener.name.b.ssl.client.auth", "none"),)
    )
    assert config.client_auth("SSL") == "required"
    assert config.client_auth("SASL_SSL") == "none"
    own = SecurityConfig(listener_values=(("listener.name.sasl_ssl.ssl.client.auth", "requested"),))
    assert (own.client_auth("SASL_SSL"), own.client_auth("SSL")) == ("requested", "none")


def test_every_listener_setting_has_its_own_environment_variable() -> None:
    for name, field in listener_settings().items():
        for listener in ("a", "sasl_ssl", "ssl_key"):
            own = f"listener.name.{listener}.{name}"
            assert listener_setting_of_variable(variable_of(own)) == own
            found = listener_field(own)
            assert found is not None
            assert found.name == own
            assert found.setting.kind is field.setting.kind
            assert is_dynamic(own) == field.setting.is_dynamic
    assert [
        name for name, field in listener_settings().items() if field.setting.kind is Kind.SECRET
    ] == ["ssl.key.password"]
    for variable in ("PENSTOCK_LISTENERS", "PENSTOCK_LISTENER_NAME_SSL_CLIENT_AUTH"):
        assert listener_setting_of_variable(variable) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            'listener.name.none.ssl.client.auth = "required"',
            "listener.name.none.ssl.client.auth='required' is not allowed: there is no such"
            " listener; existing listeners: in, sasl_ssl, out_2: write one of them",
        ),
        (
            'listener.name.IN.ssl.client.auth = "none"',
            "write listener.name.NAME.SETTING, with the name of the listener in small letters",
        ),
        (
            'listener.name.in.sasl.users.file = "x"',
            "sasl.users.file is not a setting of a single listener; these are max.connections,",
        ),
        (
            "listener.name.out_2.oauthbearer.connections.max.reauth.ms = 1",
            "a mechanism has no settings of its own here; set listener.name.out_2.connections",
        ),
        (
            'listener.name.in.ssl.client.auth = "maybe"',
            "listener.name.in.ssl.client.auth='maybe' is not allowed: one of none, requested",
        ),
        (
            'listener.name.out_2.sasl.enabled.mechanisms = "GSSAPI"',
            "listener.name.out_2.sasl.enabled.mechanisms='GSSAPI' is not allowed: each of SCRAM",
        ),
        (
            'listener.name.out_2.sasl.enabled.mechanisms = "OAUTHBEARER"',
            "sasl.oauthbearer.jwks.endpoint.url='' is not allowed: https://, http:// or file:PATH"
            " of a JWKS document, which OAUTHBEARER needs (listener OUT_2; or set"
            " listener.name.out_2.sasl.oauthbearer.jwks.endpoint.url)",
        ),
        (
            'listener.name.out_2.ssl.truststore.location = ""\n'
            'listener.name.out_2.ssl.client.auth = "required"',
            "listener.name.out_2.ssl.truststore.location='' is not allowed: a PEM file with CAs,"
            " because ssl.client.auth is required",
        ),
        (
            'listener.name.in.sasl.enabled.mechanisms = "PLAIN"',
            "the listener IN is SSL; give it SASL_PLAINTEXT or SASL_SSL in"
            " listener.security.protocol.map, or remove the setting",
        ),
    ],
)
def test_errors_contain_the_source_of_the_invalid_value(
    tmp_path: Path, line: str, told: str
) -> None:
    found = refusal(tmp_path, line)
    assert told in found
    assert "f.toml: " in found or "sasl.oauthbearer" in told


def test_errors_in_variables_and_flags_are_reported(tmp_path: Path) -> None:
    name = "PENSTOCK_LISTENER_NAME_IN_NUM_PARTITIONS"
    found = refusal(tmp_path, variables={name: "1"})
    assert f"environment: {name} is not a setting of a single listener; these are max.conn" in found
    found = refusal(tmp_path, sets=("listener.name.in.ssl.key.password=x",))
    assert "is a secret" in found
    assert "variable PENSTOCK_LISTENER_NAME_IN_SSL_KEY_PASSWORD" in found
    secret = {"PENSTOCK_LISTENER_NAME_IN_SSL_KEY_PASSWORD": "hush"}
    plain = {"PENSTOCK_LISTENER_SECURITY_PROTOCOL_MAP": "IN:PLAINTEXT,OUT_2:SASL_SSL"}
    found = refusal(tmp_path, variables=secret | plain)
    assert "listener.name.in.ssl.key.password='[hidden]' is not allowed: the listener IN" in found
    assert "hush" not in found


def test_the_inter_broker_mechanism_must_be_enabled_on_its_listener(tmp_path: Path) -> None:
    """Kafka has the same check."""
    own = 'inter.broker.listener.name = "OUT_2"\nsasl.inter.broker.username = "broker"'
    loaded(tmp_path, own)
    found = refusal(tmp_path, own, 'listener.name.out_2.sasl.enabled.mechanisms = "PLAIN"')
    assert "sasl.mechanism.inter.broker.protocol='SCRAM-SHA-512' is not allowed: a mech" in found
    assert "the listener OUT_2, by which brokers connect to each other (PLAIN)" in found


def test_unknown_names_are_not_listener_settings() -> None:
    for name in ("max.connections", "listener.security.protocol.map", "listener.name.x.y.z"):
        assert listener_field(name) is None
    assert listener_key_problem("listener.security.protocol.map") == ""
    assert listener_key_problem("listener.name.a.max.connections") == ""


def test_values_are_found_by_name_in_all_parts_of_the_config() -> None:
    limit, auth = "listener.name.plaintext.max.connections", "listener.name.ssl.ssl.client.auth"
    settings = BrokerSettings(
        BrokerConfig(listener_values=((limit, 7),)),
        StreamConfig(),
        CompactionConfig(),
        SecurityConfig(listener_values=((auth, "none"),)),
    )
    assert settings.listener_values == {limit: 7, auth: "none"}
