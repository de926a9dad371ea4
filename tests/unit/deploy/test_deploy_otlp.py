"""OpenTelemetry's environment variables for TLS: unusable ones are rejected with advice."""

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.definition import ProcessConfig
from penstock.deploy.node.otlp import METRICS, ReceiverFiles, variable_of
from penstock.deploy.node.traces.export import Exporter
from penstock.deploy.node.traces.set_up import of_moves, of_requests
from tests.support.certs import Authority
from tests.support.otlp_receiver import Knowing, demanding, serving

TracingOf = Callable[[ProcessConfig], AbstractContextManager[object]]
CA, CERTIFICATE, KEY = (
    f"OTEL_EXPORTER_OTLP_{name}" for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
)


def refusal(**files: Path | str) -> str:
    environment = {f"OTEL_EXPORTER_OTLP_{name}": str(path) for name, path in files.items()}
    with pytest.raises(UsageError) as refused:
        ReceiverFiles.of(environment, METRICS).context()
    return str(refused.value)


def test_the_variable_of_a_signal_overrides_the_general_one() -> None:
    environment = {CA: "/all", "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE": "/metrics"}
    assert variable_of(environment, METRICS, "CERTIFICATE").value == "/metrics"
    assert variable_of(environment, "TRACES", "CERTIFICATE") == (CA, "/all")
    assert variable_of({}, METRICS, "CERTIFICATE") == (CA, "")
    assert ReceiverFiles.of({}, METRICS).paths == []


def test_errors_contain_missing_files(tmp_path: Path) -> None:
    files = Authority(tmp_path).make("broker")
    gone = tmp_path / "gone.pem"
    assert refusal(CERTIFICATE=gone) == (
        f"{CA}={gone} cannot be read: No such file or directory; specify a PEM file that this"
        " process can read"
    )
    assert f"{CERTIFICATE}={gone} cannot be read" in refusal(
        CLIENT_CERTIFICATE=gone, CLIENT_KEY=files.key
    )
    assert f"{KEY}={gone} cannot be read" in refusal(
        CLIENT_CERTIFICATE=files.certificate, CLIENT_KEY=gone
    )
    assert f"{CA}={tmp_path} cannot be read: Is a directory" in refusal(CERTIFICATE=tmp_path)


def test_a_key_requires_its_certificate(tmp_path: Path) -> None:
    key = Authority(tmp_path).make("broker").key
    assert refusal(CLIENT_KEY=key) == f"{KEY} is set, but {CERTIFICATE} is not: set both or neither"


def test_errors_contain_files_that_tls_cannot_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, other = authority.make("broker"), authority.make("other")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    assert re.fullmatch(
        rf"{CA}={text}: .+; it must be a PEM file with the certificates of CAs",
        refusal(CERTIFICATE=text),
    )
    needs = f"its private key without a password, there or in the file of {KEY}"
    assert needs in refusal(CLIENT_CERTIFICATE=files.certificate), "the key is missing"
    wrong = refusal(CLIENT_CERTIFICATE=files.certificate, CLIENT_KEY=other.key)
    assert f"{CERTIFICATE}={files.certificate}, {KEY}={other.key}: KEY_VALUES_MISMATCH" in wrong
    assert needs in refusal(CLIENT_CERTIFICATE=text, CLIENT_KEY=files.key)


def test_an_encrypted_key_is_rejected_without_a_prompt(tmp_path: Path) -> None:
    files = Authority(tmp_path).make("broker")
    key = load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )
    said = refusal(CLIENT_CERTIFICATE=files.certificate, CLIENT_KEY=files.key)
    assert "private key without a password" in said


@pytest.mark.parametrize("tracing", [of_requests, of_moves])
@pytest.mark.parametrize("name", [CERTIFICATE, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE"])
def test_traces_require_the_files_of_their_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracing: TracingOf, name: str
) -> None:
    monkeypatch.setenv(name, str(tmp_path / "gone.pem"))
    config = ProcessConfig(store="memory:", traces_otlp_endpoint="https://collector:4318")
    with pytest.raises(UsageError, match=f"{name}=.*gone.pem cannot be read"), tracing(config):
        pass


async def test_traces_reach_a_collector_that_requires_a_client_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Collector(Knowing):
        async def take(self, request: web.Request) -> web.StreamResponse:
            return await self.taken(request)

    authority = Authority(tmp_path)
    client = authority.make("broker")
    monkeypatch.setenv(CA, str(authority.file))
    monkeypatch.setenv(CERTIFICATE, str(client.certificate))
    monkeypatch.setenv(KEY, str(client.key))
    # the SDK's HTTP client gives precedence to these
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    collector = Collector()
    async with serving(collector, tls=demanding(authority)):
        exporter = Exporter(f"https://127.0.0.1:{collector.port}", "penstock-broker")
        exporter.tracer.start_span("produce").end()
        await asyncio.to_thread(exporter.close)
    assert collector.names == ["broker"]
