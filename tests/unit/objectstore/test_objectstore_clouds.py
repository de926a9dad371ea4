"""Google Cloud Storage and Azure where they differ from S3: responses, version tokens and errors.
`tests/stores` runs the object store contract on servers of both.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock.objectstore.azure import AzureStore
from penstock.objectstore.config import AzureConfig, GcsConfig
from penstock.objectstore.errors import (
    AccessDenied,
    BucketNotFound,
    ObjectLocked,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    Throttled,
    Unavailable,
    UnexpectedResponse,
)
from penstock.objectstore.gcs import GcsStore
from penstock.objectstore.remote import RemoteStore
from penstock.objectstore.url import parse_store_url, redact_url
from tests.support.raw_server import RawServer, error_response, raw_server

GCS = GcsConfig(bucket="bucket")
AZURE = AzureConfig(account="acct", container="box", account_key="a2V5")
MAKERS: dict[str, Callable[[str], RemoteStore]] = {
    "gs": lambda endpoint: GcsStore(replace(GCS, endpoint=endpoint)),
    "az": lambda endpoint: AzureStore(replace(AZURE, endpoint=endpoint)),
}


@asynccontextmanager
async def raw_store(
    scheme: str, *responses: bytes | None
) -> AsyncIterator[tuple[RawServer, RemoteStore]]:
    async with raw_server(*responses) as raw:
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
        ("gs", 403, "ObjectUnderActiveHold", ObjectLocked),
        ("gs", 400, "InvalidArgument", UnexpectedResponse),
        ("az", 409, "BlobAlreadyExists", PreconditionFailed),
        ("az", 412, "ConditionNotMet", PreconditionFailed),
        ("az", 412, "LeaseIdMissing", ObjectLocked),
        ("az", 409, "LeaseAlreadyPresent", ObjectLocked),
        ("az", 409, "BlobImmutableDueToPolicy", ObjectLocked),
        ("az", 409, "BlobImmutableDueToLegalHold", ObjectLocked),
        ("az", 412, "LeaseNotPresentWithBlobOperation", ObjectLocked),
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
async def test_responses_are_mapped_to_errors_of_the_port(
    scheme: str, status: int, code: str, expected: type[ObjectStoreError]
) -> None:
    async with raw_store(scheme, error_response(status, code)) as (raw, store):
        with pytest.raises(ObjectStoreError) as caught:
            await store.put_if_absent("k", b"v")
        assert type(caught.value) is expected
        assert len(raw.requests) == 1


@pytest.mark.parametrize(
    ("scheme", "status", "code", "message", "expected"),
    [
        ("az", 412, "ConditionNotMet", "Please retry", PreconditionFailed),
        ("az", 409, "BlobAlreadyExists", "released a lease", PreconditionFailed),
        ("az", 409, "PendingCopyOperation", "the lease is immutable", UnexpectedResponse),
        ("az", 503, "ServerBusy", "please retry", Unavailable),
        ("gs", 403, "AccessDenied", "on hold, see the retention policy", AccessDenied),
        ("gs", 503, "ServiceUnavailable", "token request: status code: 404", Unavailable),
    ],
)
async def test_errors_do_not_depend_on_the_text_of_a_message(
    scheme: str, status: int, code: str, message: str, expected: type[ObjectStoreError]
) -> None:
    key = "p/169.254.169.254 token request: status code: 404"
    async with raw_store(scheme, error_response(status, code, message)) as (_, store):
        with pytest.raises(ObjectStoreError) as caught:
            await store.put_if_absent(key, b"v")
        assert type(caught.value) is expected


@pytest.mark.parametrize("scheme", ["gs", "az"])
async def test_a_store_without_ranges_is_reported(scheme: str) -> None:
    """The tail of an object is then cut from the whole object."""
    head = (
        b'HTTP/1.1 200 OK\r\nETag: "0x1"\r\nx-goog-generation: 7\r\nContent-Length: 4\r\n'
        b"Last-Modified: Sun, 29 Nov 2026 08:00:00 GMT\r\n\r\n"
    )
    whole = head + b"tail"
    async with raw_store(scheme, head if scheme == "az" else whole, whole, whole) as (_, store):
        if scheme == "gs":
            assert (await store.get_tail("k", 2)).data == b"il"
        else:
            with pytest.raises(UnexpectedResponse, match="ignored the Range header"):
                await store.get_tail("k", 2)


async def test_a_busy_account_counts_as_throttling_only_if_the_response_says_so() -> None:
    """Otherwise the write may have succeeded, so its retry compares the object."""
    said = error_response(503, "ServerBusy", "Operations per second is over the account limit.")
    async with raw_store("az", said) as (_, store):
        with pytest.raises(Throttled):
            await store.put("k", b"v")


@pytest.mark.parametrize(
    ("scheme", "refused", "absent", "token"),
    [
        ("gs", error_response(412, "PreconditionFailed"), error_response(404, ""), "17"),
        ("az", error_response(412, "ConditionNotMet"), error_response(404, ""), '"0x1"'),
    ],
)
async def test_a_412_without_an_object_is_reported_as_object_not_found(
    scheme: str, refused: bytes, absent: bytes, token: str
) -> None:
    async with raw_store(scheme, refused, absent, refused, error_response(503, "")) as (raw, store):
        with pytest.raises(ObjectNotFound):
            await store.put_if_match("k", b"v", token)
        with pytest.raises(PreconditionFailed):  # the HEAD after the failed PUT
            await store.put_if_match("k", b"v", token)
        assert [request.split()[0] for request in raw.requests] == [b"PUT", b"HEAD"] * 2


@pytest.mark.parametrize("token", ["0", "", '"17"', "-1", "\u0661"])
async def test_only_generations_are_sent_to_google_as_conditions(token: str) -> None:
    """Generation 0 would mean that the object must not exist."""
    async with raw_store("gs", error_response(404, "")) as (raw, store):
        with pytest.raises(ObjectNotFound):
            await store.put_if_match("k", b"v", token)
        assert [request.split()[0] for request in raw.requests] == [b"HEAD"]


async def test_the_tail_of_an_azure_blob_comes_from_one_version() -> None:
    head = (
        b'HTTP/1.1 200 OK\r\nETag: "0x1"\r\nContent-Length: 10\r\n'
        b"Last-Modified: Sun, 29 Nov 2026 08:00:00 GMT\r\n\r\n"
    )
    async with raw_store("az", head, error_response(412, "ConditionNotMet")) as (raw, store):
        with pytest.raises(Unavailable, match="replaced"):
            await store.get_tail("k", 3)
        assert b'if-match: "0x1"' in raw.requests[1].lower()
        assert b"range: bytes=7-9" in raw.requests[1].lower()


async def test_errors_suggest_a_command() -> None:
    cases = [
        ("gs", error_response(404, "NoSuchBucket"), "gcloud storage buckets create gs://bucket"),
        ("gs", error_response(403, "AccessDenied"), "roles/storage.objectUser"),
        ("gs", error_response(403, "RetentionPolicyNotMet"), "remove the lease"),
        (
            "az",
            error_response(404, "ContainerNotFound"),
            "az storage container create --account-name acct",
        ),
        ("az", error_response(403, "AuthorizationFailure"), "Storage Blob Data Contributor"),
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
def test_errors_of_invalid_urls_suggest_a_url(url: str, says: str) -> None:
    with pytest.raises(ObjectStoreError) as caught:
        parse_store_url(url)
    assert says in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_urls_are_parsed_and_hide_secrets() -> None:
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
