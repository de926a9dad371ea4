"""Google Cloud Storage and Azure where they differ from S3: responses, version tokens, credentials
and what their errors say. `tests/stores` holds both to the contract, on servers.
"""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.objectstore.azure import AzureStore
from penstock.objectstore.azure_credentials import options_of, sas_expiry
from penstock.objectstore.config import AzureConfig, GcsConfig
from penstock.objectstore.errors import (
    AccessDenied,
    BucketNotFound,
    InvalidStoreConfig,
    ObjectLocked,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    Throttled,
    Unavailable,
    UnexpectedResponse,
)
from penstock.objectstore.gcs import GcsStore
from penstock.objectstore.gcs_credentials import credentials
from penstock.objectstore.remote import RemoteStore
from penstock.objectstore.url import parse_store_url, redact_url
from tests.support.raw_server import RawServer, answer, raw_server

GCS = GcsConfig(bucket="bucket")
AZURE = AzureConfig(account="acct", container="box", account_key="a2V5")
MAKERS: dict[str, Callable[[str], RemoteStore]] = {
    "gs": lambda endpoint: GcsStore(replace(GCS, endpoint=endpoint)),
    "az": lambda endpoint: AzureStore(replace(AZURE, endpoint=endpoint)),
}


@asynccontextmanager
async def raw_store(
    scheme: str, *answers: bytes | None
) -> AsyncIterator[tuple[RawServer, RemoteStore]]:
    async with raw_server(*answers) as raw:
        store = MAKERS[scheme](raw.endpoint)
        yield raw, store
        await store.close()


@pytest.mark.parametrize(
    ("scheme", "status", "code", "expected"),
    [
        ("gs", 412, "PreconditionFailed", PreconditionFailed),
        ("gs", 404, "NoSuchBucket", BucketNotFound),
        ("gs", 429, "SlowDown", Throttled),
        ("gs", 503, "ServiceUnavailable", Unavailable),
        ("gs", 408, "", Unavailable),
        ("gs", 401, "AuthenticationRequired", AccessDenied),
        ("gs", 403, "AccessDenied", AccessDenied),
        ("gs", 403, "RetentionPolicyNotMet", ObjectLocked),
        ("gs", 400, "InvalidArgument", UnexpectedResponse),
        ("az", 409, "BlobAlreadyExists", PreconditionFailed),
        ("az", 412, "ConditionNotMet", PreconditionFailed),
        ("az", 412, "LeaseIdMissing", ObjectLocked),
        ("az", 409, "LeaseAlreadyPresent", ObjectLocked),
        ("az", 409, "BlobImmutableDueToPolicy", ObjectLocked),
        ("az", 409, "InvalidBlobType", UnexpectedResponse),
        ("az", 412, "MaxBlobSizeConditionNotMet", UnexpectedResponse),
        ("az", 404, "ContainerNotFound", BucketNotFound),
        ("az", 409, "ContainerBeingDeleted", BucketNotFound),
        ("az", 403, "AuthorizationPermissionMismatch", AccessDenied),
        ("az", 403, "AuthenticationFailed", AccessDenied),
        ("az", 503, "ServerBusy", Unavailable),
        ("az", 500, "OperationTimedOut", Unavailable),
    ],
)
async def test_responses_become_errors_of_the_port(
    scheme: str, status: int, code: str, expected: type[ObjectStoreError]
) -> None:
    async with raw_store(scheme, answer(status, code)) as (raw, store):
        with pytest.raises(ObjectStoreError) as caught:
            await store.put_if_absent("k", b"v")
        assert type(caught.value) is expected
        assert len(raw.requests) == 1


async def test_a_busy_account_is_throttling_only_if_it_says_so() -> None:
    """Without that text the write may have taken place, and its repetition is compared."""
    said = answer(503, "ServerBusy", "Operations per second is over the account limit.")
    async with raw_store("az", said) as (_, store):
        with pytest.raises(Throttled):
            await store.put("k", b"v")


@pytest.mark.parametrize(
    ("scheme", "refused", "absent", "token"),
    [
        ("gs", answer(412, "PreconditionFailed"), answer(404, ""), "17"),
        ("az", answer(412, "ConditionNotMet"), answer(404, ""), '"0x1"'),
    ],
)
async def test_a_412_without_an_object_is_the_404_of_s3(
    scheme: str, refused: bytes, absent: bytes, token: str
) -> None:
    async with raw_store(scheme, refused, absent, refused, answer(503, "")) as (raw, store):
        with pytest.raises(ObjectNotFound):
            await store.put_if_match("k", b"v", token)
        with pytest.raises(PreconditionFailed):  # the HEAD after it failed
            await store.put_if_match("k", b"v", token)
        assert [request.split()[0] for request in raw.requests] == [b"PUT", b"HEAD"] * 2


@pytest.mark.parametrize("token", ["0", "", '"17"', "-1", "\u0661"])
async def test_google_never_gets_a_condition_that_is_no_generation(token: str) -> None:
    """Generation 0 means that no object must exist."""
    async with raw_store("gs", answer(404, "")) as (raw, store):
        with pytest.raises(ObjectNotFound):
            await store.put_if_match("k", b"v", token)
        assert [request.split()[0] for request in raw.requests] == [b"HEAD"]


async def test_the_tail_of_an_azure_blob_is_of_one_version() -> None:
    head = (
        b'HTTP/1.1 200 OK\r\nETag: "0x1"\r\nContent-Length: 10\r\n'
        b"Last-Modified: Sun, 29 Nov 2026 08:00:00 GMT\r\n\r\n"
    )
    async with raw_store("az", head, answer(412, "ConditionNotMet")) as (raw, store):
        with pytest.raises(Unavailable, match="replaced"):
            await store.get_tail("k", 3)
        assert b'if-match: "0x1"' in raw.requests[1].lower()
        assert b"range: bytes=7-9" in raw.requests[1].lower()


async def test_errors_say_what_to_type() -> None:
    cases = [
        ("gs", answer(404, "NoSuchBucket"), "gcloud storage buckets create gs://bucket"),
        ("gs", answer(403, "AccessDenied"), "roles/storage.objectUser"),
        ("gs", answer(403, "X", "subject to bucket's retention policy"), "remove the lease"),
        ("az", answer(404, "ContainerNotFound"), "az storage container create --account-name acct"),
        ("az", answer(403, "AuthorizationFailure"), "Storage Blob Data Contributor"),
    ]
    for scheme, response, says in cases:
        async with raw_store(scheme, response) as (_, store):
            with pytest.raises(ObjectStoreError) as caught:
                await store.put("k", b"v")
            assert says in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gcs://bucket", "did you mean gs://"),
        ("abfss://box@acct.dfs.core.windows.net", "did you mean az://"),
        ("gs://Bucket", "not a bucket name"),
        ("gs://bucket?region=eu", "allowed are endpoint, credentials_file"),
        ("gs://bucket?credential_file=x", "did you mean credentials_file"),
        ("gs://bucket?secret_key=SECRET", "unknown parameter"),
        ("s3://bucket?endpoint=https://storage.googleapis.com", "write gs://BUCKET"),
        ("s3://b-c?endpoint=https://acct.blob.core.windows.net", "write az://ACCOUNT/CONTAINER"),
        ("az://acct", "write az://ACCOUNT/CONTAINER"),
        ("az://Acct/box", "storage account"),
        ("az://acct/box--x", "container"),
        ("az://acct/box?sv=2024&se=2027&sig=SECRET", "set AZURE_STORAGE_SAS_TOKEN"),
        ("az://acct/box?account_key=SECRET&sas_token=sig%3DSECRET", "together"),
        ("az://acct/box?sastoken=sig%3DSECRET", "did you mean sas_token"),
        ("az://acct/box/a//b", "not allowed"),
    ],
)
def test_urls_that_are_wrong_say_what_to_type(url: str, says: str) -> None:
    with pytest.raises(ObjectStoreError) as caught:
        parse_store_url(url)
    assert says in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_urls_are_understood_and_hide_secrets() -> None:
    assert parse_store_url("gs://my_bucket/a/b?credentials_file=/k.json") == GcsConfig(
        bucket="my_bucket", prefix="a/b/", credentials_file="/k.json"
    )
    found = parse_store_url("az://acct.blob.core.windows.net/box/a?account_key=S%2BECRET%3D%3D")
    assert found == AzureConfig(
        account="acct", container="box", prefix="a/", account_key="S+ECRET=="
    )
    assert found.redacted() == "az://acct/box/a?account_key=***"
    assert "ECRET" not in repr(found)
    sas = "az://acct/box?sas_token=sv%3D1%26sig%3DSECRET%26se%3D2027&deadline_ms=5"
    assert redact_url(sas) == "az://acct/box?sas_token=***&deadline_ms=5"
    assert parse_store_url(sas).redacted() == "az://acct/box?sas_token=***"


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
    assert credentials(GCS, home) == {}  # the service account of the pod or machine
    assert credentials(GCS, variables) == {used: theirs}
    assert credentials(replace(GCS, credentials_file=mine), variables) == {used: mine}
    local = credentials(replace(GCS, endpoint="http://127.0.0.1:1"), variables)
    assert local["credential_provider"]()["token"] == "local"
    adc = key(".config/gcloud/application_default_credentials.json", "external_account")
    with pytest.raises(InvalidStoreConfig, match=r"gcloud names .*'external_account', which"):
        credentials(GCS, home)
    Path(adc).write_text("no JSON")
    with pytest.raises(InvalidStoreConfig, match="is no JSON file of credentials"):
        credentials(GCS, home)
    with pytest.raises(InvalidStoreConfig, match=r"credentials_file names .*cannot be read: No "):
        credentials(replace(GCS, credentials_file=str(tmp_path / "absent")), home)


async def test_a_machine_without_an_identity_says_how_to_sign_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The metadata server of Google, here one that refuses, and the one of Azure."""
    monkeypatch.setenv("HOME", str(tmp_path))
    async with raw_server(answer(404, ""), answer(404, "")) as raw:
        host = raw.endpoint.removeprefix("http://")
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        monkeypatch.setenv("GCE_METADATA_IP", host)
        with pytest.raises(ObjectStoreError, match="gcloud auth application-default login"):
            await GcsStore(GCS, {"HOME": str(tmp_path)}).get("k")
        assert all(b"Metadata-Flavor".lower() in request.lower() for request in raw.requests)


@pytest.mark.parametrize("scheme", ["gs", "az"])
async def test_the_identity_of_the_machine_signs_in(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expires = int(datetime.now(UTC).timestamp()) + 3_600
    token = json.dumps(
        {"access_token": "t0k", "expires_in": 3_600, "token_type": "B", "expires_on": str(expires)}
    ).encode()
    grant = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(token)
    ) + token
    created = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nx-goog-generation: 7\r\nContent-Length: 0\r\n\r\n'
    async with raw_server(grant) as metadata, raw_server(created) as cloud:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.endpoint.removeprefix("http://"))
        monkeypatch.setenv("IDENTITY_ENDPOINT", metadata.endpoint)
        # Servers on the loopback address get the emulator's key.
        endpoint = cloud.endpoint.replace("127.0.0.1", "0.0.0.0")
        store: RemoteStore
        if scheme == "gs":
            store = GcsStore(replace(GCS, endpoint=endpoint), {"HOME": str(tmp_path)})
        else:
            azure = replace(AZURE, account_key=None, endpoint=endpoint)
            store = AzureStore(azure, {})
        assert await store.put("k", b"v") == ("7" if scheme == "gs" else '"e"')
        assert b"authorization: bearer t0k" in cloud.requests[0].lower()


def test_azure_credentials_of_the_url_exclude_the_environment() -> None:
    account = {"account_name": "acct", "endpoint": None}
    with_key = {**account, "account_key": "a2V5", "credential_type": "access_key"}
    variables = {"AZURE_STORAGE_SAS_TOKEN": "se=2027-01-01&sig=x"}
    assert options_of(AZURE, variables) == with_key
    sas = replace(AZURE, account_key=None, sas_token="se=2027-01-01T08%3A00%3A00Z&sig=x")
    assert options_of(sas, {})["credential_type"] == "sas_token"
    plain = replace(AZURE, account_key=None)
    assert options_of(plain, variables) == account
    azurite = replace(plain, endpoint="http://127.0.0.1:10000")
    assert options_of(azurite, {})["endpoint"] == "http://127.0.0.1:10000/acct"
    assert base64.b64decode(options_of(azurite, {})["account_key"])
    assert "account_key" not in options_of(azurite, variables)
    assert sas_expiry(sas, {}) == datetime(2027, 1, 1, 8, tzinfo=UTC)
    assert sas_expiry(plain, variables) == datetime(2027, 1, 1, tzinfo=UTC)
    assert sas_expiry(AZURE, variables) is None
    assert sas_expiry(replace(sas, sas_token="sig=x"), {}) is None
    with pytest.raises(InvalidStoreConfig, match="Invalid"):
        AzureStore(replace(AZURE, account_key="no base64!"))
