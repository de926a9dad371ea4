"""The settings of a client mean the same in the configuration of each client library."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.base.listeners import SecurityProtocol
from penstock.deploy.cli.snippets import snippets
from penstock.deploy.clients import state_file
from penstock.deploy.clients.assertions import Assertion
from penstock.deploy.clients.bearer_tokens import TokenSource
from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity, parse
from penstock.deploy.clients.state_file import ClusterState
from penstock.deploy.errors import UsageError
from penstock.deploy.local import client_dialects as dialects
from penstock.deploy.local.client_snippets import SNIPPETS, filled, lines

MUTUAL_TLS = ClientSecurity(
    SecurityProtocol.SSL,
    ca="/ca.pem",
    certificate="/me.pem",
    key="/me.pem",
    key_password="of the key",
    checks_host=False,
)
SCRAM = ClientSecurity(
    SecurityProtocol.SASL_SSL, "SCRAM-SHA-512", "ada", 'a "quoted\\ word', ca="/ca.pem"
)
SECRET = ClientSecurity(
    SecurityProtocol.SASL_SSL,
    "OAUTHBEARER",
    tokens=TokenSource("https://id.example/token", "me", "its secret", "kafka"),
)
ASSERTIONS = [
    replace(SECRET, tokens=TokenSource("https://id.example/token", assertion=assertion))
    for assertion in (
        Assertion(file="/assertion.jwt"),
        Assertion(
            key_file="/key.pem",
            key_passphrase="of the key",
            algorithm="ES256",
            template_file="/template.json",
            claims=(("sub", "me"), ("aud", "https://id.example")),
            exp_s=60,
            nbf_s=0,
            has_id=True,
        ),
    )
]


def test_commands_accept_files_of_java_and_librdkafka() -> None:
    for security in (PLAINTEXT, MUTUAL_TLS, SCRAM, SECRET, *ASSERTIONS):
        assert parse(dialects.properties_text(dialects.java(security))) == security
        assert parse(dialects.properties_text(security.properties())) == security


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("security.protcol=SSL", "security.protocol"),
        ("security_protocol=SSL", "security.protocol"),
        ("sasl.mechansim=PLAIN", "sasl.mechanism"),
        ("sasl.user.name=ada", "sasl.username"),
        ("ssl.ca.loction=/ca.pem", "ssl.ca.location"),
    ],
)
def test_misspelled_properties_are_rejected(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {meant}?"):
        parse(text)


def test_properties_of_other_clients_are_ignored() -> None:
    names = ("ssl.crl.location", "ssl.keystore.password", "ssl.ca.pem", "linger.ms", "acks")
    names += ("ssl.truststore.type", "sasl.login.class", "https.ca.location")
    assert parse("".join(f"{name}=x\n" for name in names)) == PLAINTEXT


def test_python_clients_get_certificate_files_and_credentials() -> None:
    assert dialects.kafka_python(MUTUAL_TLS) == {
        "security_protocol": "SSL",
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/me.pem",
        "ssl_keyfile": "/me.pem",
        "ssl_password": "of the key",
        "ssl_check_hostname": False,
    }
    assert dialects.aiokafka(SCRAM) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ada",
        "sasl_plain_password": 'a "quoted\\ word',
    }
    assert dialects.aiokafka_tls(MUTUAL_TLS) == {
        "cafile": "/ca.pem",
        "certfile": "/me.pem",
        "keyfile": "/me.pem",
        "password": "of the key",
    }


def test_programs_contain_no_security_settings_for_plaintext() -> None:
    for name, snippet in SNIPPETS.items():
        text = filled(snippet.program, bootstrap="b:1", topic="t", store="s3://s")
        assert not {"BOOTSTRAP", "TOPIC", "STORE", "KCAT", "JAVA"} & set(text.split())
        assert "security" not in text, name
        assert "ssl" not in text, name


@pytest.mark.parametrize("security", [SCRAM, MUTUAL_TLS])
def test_lines_contain_every_setting_but_hide_secrets(security: ClientSecurity) -> None:
    url = "s3://b?access_key=id&secret_key=s3cret"
    shown = lines(bootstrap="b:1", topic="t", store=url, security=security, hides_secrets=True)
    text = "\n".join(shown)
    for secret in ("s3cret", "quoted", "of the key"):
        assert secret not in text
    (of_java,) = [line for line in shown if line.startswith("java ")]
    assert all(f", {name}=" in of_java for name in dialects.java(security))
    complete = "\n".join(lines(bootstrap="b:1", topic="t", store=url, security=security))
    assert "secret_key=s3cret" in complete
    assert json.dumps(security.password or security.key_password) in complete


def test_spark_requires_a_store_that_other_processes_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dev.json"
    for store in ("memory:", "s3://penstock?endpoint=http://127.0.0.1:1"):
        state = ClusterState(
            pid=os.getpid(), bootstrap="b:1", controller="c:2", store_url=store, processes=[]
        )
        state_file.write(path, state)
        if store == "memory:":
            with pytest.raises(UsageError, match="run `penstock dev` without --store memory"):
                snippets("spark", state_file=path)
            snippets(state_file=path)
            assert "spark" not in capsys.readouterr().out
        else:
            snippets("spark", state_file=path)
            assert store in capsys.readouterr().out


@pytest.mark.parametrize("client", ["aiokafka", "kafka-python"])
def test_a_program_does_not_get_the_name_of_its_client_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """Otherwise Python would import the program instead of the package."""
    monkeypatch.chdir(tmp_path)
    program = f"{SNIPPETS[client].package}.py"
    for name in (program, "example.py"):
        with Path(name).open("w") as output, monkeypatch.context() as patched:
            patched.setattr("sys.stdout", output)
            if name == program:
                with pytest.raises(UsageError, match=f"snippets {client} > example.py"):
                    snippets(client, bootstrap="b:1")
            else:
                snippets(client, bootstrap="b:1")
    assert not Path(program).read_text()
    assert "b:1" in Path("example.py").read_text()
