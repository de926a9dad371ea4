"""Google Cloud and Azure credentials: which ones are used, how they are renewed, and errors."""

import base64
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from penstock.objectstore.azure import AzureStore
from penstock.objectstore.azure_credentials import options_of, sas_expiry, sas_token
from penstock.objectstore.azure_errors import azure_dialect
from penstock.objectstore.config import AzureConfig, GcsConfig, S3Config
from penstock.objectstore.errors import (
    AccessDenied,
    InvalidStoreConfig,
    SignInFailed,
    Unavailable,
)
from penstock.objectstore.gcs import GcsStore
from penstock.objectstore.gcs_credentials import credentials
from penstock.objectstore.gcs_errors import gcs_dialect
from penstock.objectstore.gcs_federation import ExternalAccount
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.remote import RemoteStore
from penstock.objectstore.remote_errors import translate
from penstock.objectstore.s3 import S3Store
from tests.support.ports import free_ports
from tests.support.raw_server import RawServer, error_response, raw_server
from tests.support.waiting import until

GCS = GcsConfig(bucket="bucket")
AZURE = AzureConfig(account="acct", container="box")
CREATED = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nx-goog-generation: 7\r\nContent-Length: 0\r\n\r\n'
IDENTITY = {"AZURE_CLIENT_ID": "app", "AZURE_TENANT_ID": "tenant"}


def of_json(content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def grant(token: str, lifetime_s: int = 3_600) -> bytes:
    """Return a token response of Google or Azure."""
    expires = int(datetime.now(UTC).timestamp()) + lifetime_s
    return of_json(
        {
            "access_token": token,
            "expires_in": lifetime_s,
            "token_type": "B",
            "expires_on": str(expires),
        }
    )


def remote(server: RawServer) -> str:
    """Return an endpoint that does not count as an emulator, for which placeholder credentials
    would be used.
    """
    return server.endpoint.replace("127.0.0.1", "0.0.0.0")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in os.environ:
        if name.startswith(("AZURE_", "GOOGLE_", "AWS_")):
            monkeypatch.delenv(name)
    return tmp_path


def test_google_credentials_come_from_the_url_the_environment_and_gcloud(tmp_path: Path) -> None:
    def key(name: str, kind: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"type": kind}))
        return str(path)

    mine, theirs = key("mine.json", "service_account"), key("theirs.json", "authorized_user")
    home = {"HOME": str(tmp_path)}
    variables = {**home, "GOOGLE_APPLICATION_CREDENTIALS": theirs}
    used = "application_credentials"
    assert credentials(GCS, home) == {}  # the service account of the pod or the machine
    assert credentials(GCS, variables) == {used: theirs}
    assert credentials(replace(GCS, credentials_file=mine), variables) == {used: mine}
    local = credentials(replace(GCS, endpoint="http://127.0.0.1:1"), variables)
    assert local["credential_provider"]()["token"] == "local"
    adc = key(".config/gcloud/application_default_credentials.json", "gdch_service_account")
    with pytest.raises(InvalidStoreConfig, match=r"gcloud names .*'gdch_service_account', which"):
        credentials(GCS, home)
    Path(adc).write_text("no JSON")
    with pytest.raises(InvalidStoreConfig, match="is no JSON file of credentials"):
        credentials(GCS, home)
    with pytest.raises(InvalidStoreConfig, match=r"credentials_file names .*cannot be read: No "):
        credentials(replace(GCS, credentials_file=str(tmp_path / "absent")), home)


@pytest.mark.parametrize(
    "variables",
    [
        {"SERVICE_ACCOUNT": "/absent"},
        {"GOOGLE_SERVICE_ACCOUNT": "/absent"},
        {"GOOGLE_SERVICE_ACCOUNT_PATH": "/absent", "GOOGLE_SERVICE_ACCOUNT_KEY": "{}"},
        {"GOOGLE_BEARER_TOKEN": "another"},
        {"GOOGLE_SKIP_SIGNATURE": "true"},
        {"GOOGLE_APPLICATION_CREDENTIALS": ""},
        {"GOOGLE_BASE_URL": "http://127.0.0.1:1", "GOOGLE_BUCKET": "another"},
        {"AZURE_STORAGE_TOKEN": "another"},
        {"AZURE_SKIP_SIGNATURE": "true"},
        {"AZURE_STORAGE_USE_EMULATOR": "true"},
        {"AZURE_CREDENTIAL_TYPE": "azure_cli"},
        {"AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1", "AZURE_CONTAINER_NAME": "another"},
        {"AWS_SKIP_SIGNATURE": "true"},
        {"AWS_CONDITIONAL_PUT": "disabled"},
        {"AWS_S3_EXPRESS": "true"},
    ],
)
async def test_obstore_environment_variables_override_nothing(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_server(grant("t0k")) as metadata, raw_server(CREATED) as cloud:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.endpoint.removeprefix("http://"))
        monkeypatch.setenv("IDENTITY_ENDPOINT", metadata.endpoint)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        cloud_name = next(iter(variables)).partition("_")[0]
        store: RemoteStore
        if cloud_name == "AZURE":
            store = AzureStore(replace(AZURE, endpoint=remote(cloud)))
        elif cloud_name == "AWS":
            keys = {"access_key": "AKIA", "secret_key": "s"}
            s3 = S3Config(bucket="bucket", endpoint=remote(cloud), path_style=True, **keys)
            store = S3Store(s3)
        else:
            store = GcsStore(replace(GCS, endpoint=remote(cloud)))
        assert {name: os.environ[name] for name in variables} == variables
        await store.put_if_absent("k", b"v")
        await store.close()
    (request,) = cloud.requests
    signed = b"credential=AKIA/" if cloud_name == "AWS" else b"authorization: bearer t0k"
    assert signed.lower() in request.lower()
    assert request.startswith(b"PUT /%s/k " % (b"box" if cloud_name == "AZURE" else b"bucket"))


@pytest.mark.parametrize("scheme", ["gs", "az"])
@pytest.mark.parametrize(
    ("status", "retriable"),
    [
        (400, False),
        (403, False),
        (404, None),
        (408, True),
        (410, True),
        (429, True),
        (500, True),
        (503, True),
    ],
)
async def test_requests_to_a_failing_metadata_server_are_retried(
    scheme: str, status: int, retriable: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure's metadata server responds with 404 during updates."""
    async with raw_server(*[error_response(status, "")] * 2) as metadata:
        host = metadata.endpoint.removeprefix("http://")
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        monkeypatch.setenv("GCE_METADATA_IP", host)
        monkeypatch.setenv("IDENTITY_ENDPOINT", metadata.endpoint)
        store = GcsStore(GCS) if scheme == "gs" else AzureStore(AZURE)
        with pytest.raises((SignInFailed, Unavailable)) as caught:
            await store.get("k")
        expected = scheme == "az" if retriable is None else retriable
        assert caught.value.retriable == expected
        if not expected:
            assert "no credentials" in str(caught.value)


@pytest.mark.parametrize("scheme", ["gs", "az"])
async def test_the_error_without_a_metadata_server_contains_advice(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the refused connection is real; only the address is not that of the cloud."""
    (port,) = free_ports(1)
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{port}")
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{port}")
    store = GcsStore(GCS) if scheme == "gs" else AzureStore(AZURE)
    with pytest.raises(Unavailable) as caught:
        await store.get("k")
    assert "no credentials" not in str(caught.value)
    dialect = gcs_dialect(GCS) if scheme == "gs" else azure_dialect(AZURE)
    advice = "gcloud auth application-default login" if scheme == "gs" else "az login"
    client_error = caught.value.__cause__
    assert isinstance(client_error, Exception)
    (host, *_) = dialect.metadata_hosts
    metadata = type(client_error)(str(client_error).replace(f"127.0.0.1:{port}", host))
    for error, has_advice in ((client_error, False), (metadata, True)):
        assert (advice in str(translate(error, "get", dialect, "k"))) == has_advice


@pytest.mark.parametrize("scheme", ["gs", "az"])
async def test_the_identity_of_the_machine_is_used_to_sign_in(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_server(grant("t0k")) as metadata, raw_server(CREATED) as cloud:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.endpoint.removeprefix("http://"))
        monkeypatch.setenv("IDENTITY_ENDPOINT", metadata.endpoint)
        store: RemoteStore
        if scheme == "gs":
            store = GcsStore(replace(GCS, endpoint=remote(cloud)))
        else:
            store = AzureStore(replace(AZURE, endpoint=remote(cloud)))
        assert await store.put("k", b"v") == ("7" if scheme == "gs" else '"e"')
        assert b"authorization: bearer t0k" in cloud.requests[0].lower()


@pytest.mark.parametrize(
    ("of_url", "variables", "expected"),
    [
        ({"account_key": "a"}, {"AZURE_STORAGE_SAS_TOKEN": "sas"}, "access_key"),
        ({"sas_token": "sas"}, {"AZURE_STORAGE_ACCOUNT_KEY": "a"}, "sas_token"),
        (
            {},
            {
                "AZURE_STORAGE_ACCOUNT_KEY": "a",
                **IDENTITY,
                "AZURE_FEDERATED_TOKEN_FILE": "f",
                "AZURE_STORAGE_SAS_TOKEN": "sas",
            },
            "access_key",
        ),
        (
            {},
            {
                **IDENTITY,
                "AZURE_FEDERATED_TOKEN_FILE": "f",
                "AZURE_CLIENT_SECRET": "s",
                "AZURE_STORAGE_SAS_TOKEN": "sas",
            },
            "workload_identity",
        ),
        (
            {},
            {**IDENTITY, "AZURE_CLIENT_SECRET": "s", "AZURE_STORAGE_SAS_TOKEN": "sas"},
            "client_secret",
        ),
        ({}, {"AZURE_STORAGE_SAS_TOKEN": "sas", "AZURE_USE_AZURE_CLI": "true"}, "sas_token"),
        ({}, {"AZURE_USE_AZURE_CLI": "true", **IDENTITY}, "azure_cli"),
        ({}, IDENTITY, "managed_identity"),
        ({"endpoint": "http://127.0.0.1:10000"}, IDENTITY, "access_key"),
        ({"endpoint": "http://127.0.0.1:10000"}, {"AZURE_STORAGE_SAS_TOKEN": "sas"}, "sas_token"),
    ],
)
def test_precedence_of_azure_credentials(
    of_url: dict[str, str], variables: dict[str, str], expected: str
) -> None:
    config = replace(AZURE, **of_url)
    assert options_of(config, variables)["credential_type"] == expected
    assert sas_token(config, variables) == ("sas" if expected == "sas_token" else None)


def test_azurite_is_used_with_its_public_key() -> None:
    azurite = options_of(replace(AZURE, endpoint="http://127.0.0.1:10000"), {})
    assert azurite["endpoint"] == "http://127.0.0.1:10000/acct"
    assert base64.b64decode(azurite["account_key"])
    with pytest.raises(InvalidStoreConfig, match="Invalid"):
        AzureStore(replace(AZURE, account_key="no base64!"))


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("se=2027-01-01T08%3A00%3A00Z&sig=x", datetime(2027, 1, 1, 8, tzinfo=UTC)),
        ("?sv=1&se=2027-01-01&sig=x", datetime(2027, 1, 1, tzinfo=UTC)),
        ("sig=x", None),
        ("si=policy&sig=x", None),
        ("se=tomorrow&sig=x", None),
    ],
)
def test_the_expiry_of_a_sas_token_is_parsed(token: str, expected: datetime | None) -> None:
    assert sas_expiry(token) == expected


async def test_an_azure_workload_identity_exchanges_its_token(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token file is read again for each exchange, because Kubernetes replaces it."""
    file = home / "token"
    file.write_text("first")
    throttled = error_response(429, "")
    async with (
        raw_server(throttled, grant("a1", 1), grant("a2")) as entra,
        raw_server(*[CREATED] * 1_000) as cloud,
    ):
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", entra.endpoint)
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(file))
        for name, value in IDENTITY.items():
            monkeypatch.setenv(name, value)
        store = AzureStore(replace(AZURE, endpoint=remote(cloud)))
        with pytest.raises(Unavailable):
            await store.put("k", b"")
        await store.put("k", b"")
        file.write_text("second")

        async def renewed() -> bool:
            await store.put("k", b"")
            return b"bearer a2" in cloud.requests[-1].lower()

        await until(renewed)  # the client waits before it requests another token
        await store.close()
    assert all(request.startswith(b"POST /tenant/oauth2/v2.0/token") for request in entra.requests)
    forms = [parse_qs(body.decode()) for body in entra.bodies]
    assert [form["client_assertion"] for form in forms] == [["first"], ["first"], ["second"]]
    assert forms[1]["client_id"] == ["app"]
    assert b"authorization: bearer a1" in cloud.requests[0].lower()


async def test_the_error_of_a_rejected_azure_workload_identity_says_how_to_sign_in(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "token").write_text("expired")
    async with raw_server(error_response(401, "")) as entra:
        variables = {
            **IDENTITY,
            "AZURE_FEDERATED_TOKEN_FILE": str(home / "token"),
            "AZURE_AUTHORITY_HOST": entra.endpoint,
        }
        store = AzureStore(AZURE, variables)
        with pytest.raises(SignInFailed, match="give the pod a workload identity"):
            await store.put("k", b"")


def external(path: Path, source: dict[str, Any], token_url: str, **more: Any) -> GcsConfig:
    """Write a file of type external_account, and return a URL that contains its path."""
    pool = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
    content = {
        "type": "external_account",
        "audience": pool,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": token_url,
        "credential_source": source,
    }
    file = path / "external.json"
    file.write_text(json.dumps(content | more))
    return replace(GCS, credentials_file=str(file))


async def test_an_external_account_exchanges_the_token_in_a_file(home: Path) -> None:
    """It exchanges the file's current contents again before the access token expires."""
    file, meter = home / "token", StoreMeter()
    file.write_text("first\n")
    async with (
        raw_server(grant("g1", 2), grant("g2")) as sts,
        raw_server(*[CREATED] * 1_000) as cloud,
    ):
        config = external(home, {"file": str(file)}, f"{sts.endpoint}/v1/token")
        store = GcsStore(replace(config, endpoint=remote(cloud)), meter=meter)
        await store.put("k", b"")
        file.write_text("second\n")

        async def renewed() -> bool:
            await store.put("k", b"")
            return b"bearer g2" in cloud.requests[-1].lower()

        await until(renewed)
        await store.close()
    assert b"authorization: bearer g1" in cloud.requests[0].lower()
    first, second = (parse_qs(body.decode()) for body in sts.bodies)
    assert (first["subject_token"], second["subject_token"]) == (["first"], ["second"])
    assert first["grant_type"] == ["urn:ietf:params:oauth:grant-type:token-exchange"]
    assert first["audience"][0].endswith("/workloadIdentityPools/p/providers/q")
    assert meter.snapshot().operations["sign_in"].count == 2


async def test_an_external_account_impersonates_a_service_account(home: Path) -> None:
    """Its token comes from a URL as JSON."""
    expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    account = of_json({"accessToken": "sa", "expireTime": expires})
    async with (
        raw_server(of_json({"value": "of the provider"})) as provider,
        raw_server(grant("federated")) as sts,
        raw_server(account) as iam,
        raw_server(CREATED, CREATED) as cloud,
    ):
        source = {
            "url": f"{provider.endpoint}/token",
            "headers": {"Metadata": "True"},
            "format": {"type": "json", "subject_token_field_name": "value"},
        }
        config = external(
            home,
            source,
            sts.endpoint,
            service_account_impersonation_url=f"{iam.endpoint}/sa:generateAccessToken",
            service_account_impersonation={"token_lifetime_seconds": 900},
        )
        store = GcsStore(replace(config, endpoint=remote(cloud)))
        await store.put("k", b"")
        await store.put("k", b"")
        await store.close()
    assert b"metadata: true" in provider.requests[0].lower()
    assert parse_qs(sts.bodies[0].decode())["subject_token"] == ["of the provider"]
    assert b"authorization: bearer federated" in iam.requests[0].lower()
    assert json.loads(iam.bodies[0])["lifetime"] == "900s"
    assert all(b"bearer sa" in request.lower() for request in cloud.requests)


@pytest.mark.parametrize(
    ("response", "retriable", "says"),
    [
        (
            error_response(400, "", "invalid_grant"),
            False,
            "responded with 400.*invalid_grant.*Check the",
        ),
        (error_response(403, ""), False, "roles/iam.workloadIdentityUser"),
        (error_response(408, ""), True, "408"),
        (error_response(410, ""), True, "410"),
        (error_response(429, ""), True, "429"),
        (error_response(503, ""), True, "503"),
        (None, True, "did not respond"),
        (of_json({}), False, "has no access_token"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n[", False, "has no JSON object"),
    ],
)
async def test_errors_of_an_external_account(
    response: bytes | None, retriable: bool, says: str, home: Path
) -> None:
    (home / "token").write_text("SUBJECT")
    async with raw_server(response) as sts:
        store = GcsStore(external(home, {"file": str(home / "token")}, sts.endpoint))
        with pytest.raises((SignInFailed, Unavailable), match=says) as caught:
            await store.put("k", b"")
    assert caught.value.retriable == retriable
    assert "SUBJECT" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "token_url", "says"),
    [
        ({"executable": {"command": "/bin/x"}}, "https://sts", "executables are not implemented"),
        ({"environment_id": "aws1", "url": "http://h"}, "https://sts", "those of AWS"),
        ({"file": "f", "format": {"type": "json"}}, "https://sts", "no subject_token_field_name"),
        ({"file": "f"}, "http://sts.example", "is not an https URL"),
        ({"file": "f"}, "file:///etc/passwd", "is not an https URL"),
        ({"url": "file:///etc/passwd"}, "https://sts", "is not an https URL"),
        ({"file": "f"}, "", "it has no token_url"),
    ],
)
def test_unsupported_external_accounts_are_rejected(
    source: dict[str, Any], token_url: str, says: str, home: Path
) -> None:
    with pytest.raises(InvalidStoreConfig, match=f"credentials_file names .*{says}"):
        GcsStore(external(home, source, token_url))


@pytest.mark.parametrize(
    "response", [error_response(403, ""), error_response(503, ""), None, of_json({})]
)
async def test_errors_do_not_contain_url_parameters(response: bytes | None, home: Path) -> None:
    async with raw_server(response) as provider:
        source = {
            "url": f"{provider.endpoint}/token?key=SECRET",
            "headers": {"Authorization": "SECRET"},
            "format": {"type": "json", "subject_token_field_name": "value"},
        }
        config = external(home, source, "https://sts.example")
        store = GcsStore(config)
        with pytest.raises((SignInFailed, Unavailable), match="/token") as caught:
            await store.put("k", b"")
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in repr(
        ExternalAccount.parse(json.loads((home / "external.json").read_text()))
    )


async def test_a_missing_token_file_is_reported(home: Path) -> None:
    store = GcsStore(external(home, {"file": "/absent"}, "https://sts.example"))
    with pytest.raises(SignInFailed, match="'/absent', which cannot be read: No such file"):
        await store.put("k", b"")


async def test_a_rejected_access_key_is_not_reported_as_a_failed_sign_in() -> None:
    """The object key contains the address of the metadata server."""
    async with raw_server(error_response(403, "AuthenticationFailed")) as cloud:
        store = AzureStore(replace(AZURE, account_key="a2V5", endpoint=cloud.endpoint))
        with pytest.raises(AccessDenied):
            await store.put("topics/169.254.169.254", b"")
        await store.close()
