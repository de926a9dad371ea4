"""Define the errors of object stores, independent of the backend.

Invariant: backends raise only these errors, so callers can rely on the class and on `retriable`,
which means that the same call may succeed later. A failed write may have taken place only after
`Unavailable` and `DeadlineExceeded`. Must not import a backend.
"""

from collections.abc import Sequence
from typing import ClassVar


class ObjectStoreError(Exception):
    """Base class of object store errors."""

    retriable: ClassVar[bool] = False


class ObjectNotFound(ObjectStoreError):
    """404: there is no object with the key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no object at {key!r}")
        self.key = key


class PreconditionFailed(ObjectStoreError):
    """412: the object exists (`put_if_absent`) or does not have the expected version
    (`put_if_match`).
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"the condition of a conditional write does not hold for {key!r}")
        self.key = key


class ConditionalConflict(ObjectStoreError):
    """409: another conditional write of the same key was in progress. Nothing was written."""

    retriable = True

    def __init__(self, key: str) -> None:
        super().__init__(f"a concurrent conditional write of {key!r} was in progress")
        self.key = key


class Throttled(ObjectStoreError):
    """503 SlowDown or 429: the store rejected the request without executing it."""

    retriable = True

    def __init__(self, operation: str, key: str) -> None:
        super().__init__(f"the store throttled {operation} of {key!r}")
        self.operation = operation
        self.key = key


class Unavailable(ObjectStoreError):
    """Other 5xx, connection reset or timeout. The outcome of a write is unknown."""

    retriable = True

    def __init__(self, operation: str, key: str, cause: str) -> None:
        super().__init__(
            f"{operation} of {key!r} failed without a usable response from the store: {cause}"
        )
        self.operation = operation
        self.key = key
        self.cause = cause


class AccessDenied(ObjectStoreError):
    """403, or 401 from a compatible store."""

    def __init__(
        self,
        operation: str,
        key: str,
        cause: str,
        *,
        permissions: str = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
    ) -> None:
        super().__init__(
            f"the store refused {operation} of {key!r}: {cause}. Check the credentials and that"
            f" they allow {permissions} on this bucket"
        )
        self.operation = operation
        self.key = key
        self.cause = cause


class SignInFailed(ObjectStoreError):
    """There are no credentials for the store. Nothing was sent to it."""


class TlsFailed(ObjectStoreError):
    """The TLS connection to the store failed, for example because its certificate is not trusted.
    Nothing was sent.
    """

    def __init__(self, endpoint: str, fault: str) -> None:
        super().__init__(f"cannot connect to the store at {endpoint}: {fault}")
        self.endpoint = endpoint
        self.fault = fault


class BucketNotFound(ObjectStoreError):
    """404 NoSuchBucket: the bucket (or the Azure container) does not exist."""

    def __init__(
        self,
        bucket: str,
        endpoint: str | None = None,
        *,
        store: str = "Amazon S3",
        create: str = "",
    ) -> None:
        """store: the name of the cloud's object store. create: the command that creates the
        bucket.
        """
        where = f"at {endpoint}" if endpoint else f"in {store}"
        command = create or f"aws s3api create-bucket --bucket {bucket}"
        super().__init__(
            f"bucket {bucket!r} does not exist {where}. Create it ({command}) or name another"
            " bucket in the store URL"
        )
        self.bucket = bucket
        self.endpoint = endpoint


class ObjectLocked(ObjectStoreError):
    """A lease, hold or retention policy on the object or its bucket forbids the write. Nothing was
    written; the configuration of the bucket must be changed.
    """

    def __init__(self, operation: str, key: str, cause: str) -> None:
        super().__init__(
            f"the store refused {operation} of {key!r}: {cause}. Penstock replaces and deletes"
            " objects: remove the lease, legal hold or retention policy from the bucket"
        )
        self.operation = operation
        self.key = key
        self.cause = cause


class RangeNotSatisfiable(ObjectStoreError):
    """416: the range starts at or after the end of the object."""

    def __init__(self, key: str, start: int) -> None:
        super().__init__(f"object {key!r} ends at or before byte {start}")
        self.key = key
        self.start = start


class StoreUnknown(ObjectStoreError):
    """This process is not configured with the store that contains the key. Nothing was sent."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the store of {key!r} is not configured in this process")
        self.key = key


class InvalidKey(ObjectStoreError):
    """The backend cannot store the key: a programming error, found before any I/O."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"object key {key!r} is not allowed: {reason}")
        self.key = key


class InvalidStoreUrl(ObjectStoreError):
    """A store URL is invalid. The message shows it without its secrets."""

    def __init__(self, redacted_url: str, reason: str) -> None:
        super().__init__(
            f"store URL {redacted_url!r} is not valid: {reason}. Use"
            " s3://BUCKET[/PREFIX]?endpoint=URL&region=NAME, gs://BUCKET[/PREFIX],"
            " az://ACCOUNT/CONTAINER[/PREFIX], file:DIRECTORY or memory:"
        )
        self.redacted_url = redacted_url


class InvalidStoreConfig(InvalidStoreUrl):
    """A store cannot be opened, for example because a profile, key or certificate file in its URL
    or the environment is unusable.
    """

    def __init__(self, reason: str) -> None:
        ObjectStoreError.__init__(self, reason)
        self.redacted_url = ""


class FileSystemUnsuitable(ObjectStoreError):
    """The directory of a WAL store is missing, or its file system cannot be shared."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(f"the directory {directory} cannot be a WAL store: {reason}")
        self.directory = directory


class UnexpectedResponse(ObjectStoreError):
    """An error response that is not retriable and has no specific class."""

    def __init__(self, operation: str, key: str, code: str, message: str) -> None:
        super().__init__(f"{operation} of {key!r} failed: {code}: {message}")
        self.operation = operation
        self.key = key
        self.code = code


class ConditionalWritesIgnored(ObjectStoreError):
    """The startup probe found that the store overwrites objects that it must not overwrite. Fencing
    cannot work on such a store.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the object store does not honor conditional writes ({detail}). Penstock fences dead"
            " writers with If-None-Match and If-Match and would lose data without them. Use Amazon"
            " S3, MinIO or another store that supports both on PutObject, or upgrade the store or"
            " the proxy in front of it"
        )
        self.detail = detail


class ListOrderUnsupported(ObjectStoreError):
    """The startup probe found that the store does not list keys in byte order, so recovery would
    miss objects.
    """

    def __init__(self, listed: Sequence[str]) -> None:
        super().__init__(
            f"the object store does not list keys in the order of their bytes: {', '.join(listed)}."
            " Use an Azure storage account without hierarchical namespace (Data Lake Storage)"
        )


class ListTooLong(ObjectStoreError):
    """An unordered LIST contains more keys than fit into memory. The keys read so far are unusable,
    because any key may be missing.
    """

    def __init__(self, prefix: str, count: int) -> None:
        super().__init__(
            f"there are more than {count:,} objects below {prefix!r}, in a store that lists them in"
            " no order. Find out why the janitor does not delete them (penstock doctor), or which"
            " other program writes there"
        )
        self.prefix = prefix


class DeadlineExceeded(ObjectStoreError):
    """Retries did not succeed before the deadline. The outcome of a write is unknown."""

    def __init__(
        self,
        operation: str,
        key: str,
        deadline_ms: int,
        last_error: ObjectStoreError | None,
        *,
        store: str = "",
    ) -> None:
        """store: its URL without secrets."""
        cause = last_error.cause if isinstance(last_error, Unavailable) else last_error
        super().__init__(
            f"the object store{' ' * bool(store)}{store} did not complete {operation} of {key!r}"
            f" within {deadline_ms / 1_000:g} s: {cause or 'no response'}. Check that it runs and"
            " that this machine can reach it"
        )
        self.operation = operation
        self.key = key
        self.deadline_ms = deadline_ms
        self.last_error = last_error
