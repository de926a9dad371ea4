"""Define the configuration of stores, as values.

Invariant: printing a config never shows a secret. Must not import a backend.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

S3_EXPRESS_BUCKET: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?--([a-z0-9-]+)--x-s3")
"""Matches the name of a directory bucket (S3 Express One Zone), which contains its zone id. S3
reserves the suffix for these buckets.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """Settings shared by the stores of all clouds."""

    prefix: str = ""
    """Empty, or ends with a slash."""
    endpoint: str | None = None
    """Base URL of a compatible server or of another region; None for the cloud's own URL."""
    connections_max: int = 64
    """Maximum number of requests in flight; additional requests wait. A PUT of 8 MiB takes about
    0.2 s on S3.
    """
    connect_timeout_ms: int = 3_000
    read_timeout_ms: int = 10_000
    """Maximum time during which a request may receive no byte from the store. The wait for the
    first byte includes sending the body.
    """
    deadline_ms: int = 30_000
    """Timeout of one call, including all retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config(RemoteConfig):
    """Connection settings of an S3 bucket, or of the part below `prefix`."""

    bucket: str
    region: str | None = None
    """None to use AWS_REGION or the AWS configuration file."""
    path_style: bool = False
    """Put the bucket into the path instead of the host name, as moto, MinIO and most compatible
    stores require.
    """
    access_key: str | None = None
    """Credentials that are None are taken from the environment, a profile or a role."""
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    sse: str | None = None
    """Encryption of objects at rest, for every write: AES256 (SSE-S3) or aws:kms (SSE-KMS). None
    for the default of the bucket.
    """
    sse_kms_key_id: str | None = None
    """Id or ARN of the KMS key; None for the account's default key for S3 (aws/s3). Only with
    aws:kms.
    """
    sse_bucket_key: bool | None = None
    """Whether S3 derives object keys from a bucket key, which saves requests to KMS. None for the
    default of the bucket. Only with aws:kms.
    """

    @property
    def is_express(self) -> bool:
        """Whether this is a directory bucket: S3 Express One Zone."""
        return S3_EXPRESS_BUCKET.fullmatch(self.bucket) is not None

    def redacted(self) -> str:
        """Return the URL without secrets, for logs."""
        shown = {
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key": self.access_key and "***",
            "sse": self.sse,
            "sse_kms_key_id": self.sse_kms_key_id,
        }
        return _url(f"s3://{self.bucket}", self.prefix, shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsConfig(RemoteConfig):
    """Connection settings of a Google Cloud Storage bucket, or of the part below `prefix`."""

    bucket: str
    credentials_file: str | None = None
    """JSON file with the key of a service account, or the file written by `gcloud auth
    application-default login`. None for application default credentials.
    """

    def redacted(self) -> str:
        """Return the URL, which contains no secrets, for logs."""
        shown = {"endpoint": self.endpoint, "credentials_file": self.credentials_file}
        return _url(f"gs://{self.bucket}", self.prefix, shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureConfig(RemoteConfig):
    """Connection settings of an Azure Blob Storage container, or of the part below `prefix`."""

    account: str
    """Name of the storage account."""
    container: str
    account_key: str | None = field(default=None, repr=False)
    """Shared key. If there is neither a key nor a SAS token, the environment or the managed
    identity is used.
    """
    sas_token: str | None = field(default=None, repr=False)

    def redacted(self) -> str:
        """Return the URL without secrets, for logs."""
        shown = {
            "endpoint": self.endpoint,
            "account_key": self.account_key and "***",
            "sas_token": self.sas_token and "***",
        }
        return _url(f"az://{self.account}/{self.container}", self.prefix, shown)


def _url(location: str, prefix: str, parameters: Mapping[str, str | None]) -> str:
    shown = {name: value for name, value in parameters.items() if value}
    query = urlencode(shown, safe=":/*")
    return f"{location}/{quote(prefix)}".rstrip("/") + (f"?{query}" if query else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryConfig:
    """A store in a local directory."""

    directory: str

    def redacted(self) -> str:
        """Return the URL, for logs."""
        return f"file:{self.directory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """A store in the memory of this process."""

    def redacted(self) -> str:
        """Return the URL, for logs."""
        return "memory:"


StoreConfig = S3Config | GcsConfig | AzureConfig | DirectoryConfig | MemoryConfig
