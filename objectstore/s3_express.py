"""Access S3 Express One Zone: directory buckets, whose names end in `--ZONE--x-s3`.

The client creates a session (CreateSession) and renews it after 4 of its 5 minutes of validity.
LIST is unordered and does not support start-after, so this store reads it completely and sorts it.
Sources: S3 User Guide, "Differences for directory buckets"; object_store, aws/credential.rs.
"""

import math
import re
import time
from collections.abc import AsyncIterator
from typing import Final

from penstock.objectstore.config import S3Config
from penstock.objectstore.errors import ObjectStoreError, Unavailable
from penstock.objectstore.in_order import in_order
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.ports import ObjectInfo
from penstock.objectstore.s3 import S3Store

_SESSION_ENDED: Final = re.compile(r"<Code>(?:ExpiredToken|InvalidToken|TokenRefreshRequired)<")
_BODILESS: Final = re.compile(r"status code: 400")
_SESSION_REQUEST: Final = "CreateSession request"
_RENEWED_INTERVAL_S: Final = 1.0
"""Minimum time between two renewals: requests that were in flight with an old session may fail
later, and do not require yet another session.
"""


class S3ExpressStore(S3Store):
    """Accesses the objects of one directory bucket."""

    def __init__(self, config: S3Config, meter: StoreMeter | None = None) -> None:
        """See S3Store."""
        super().__init__(config, meter)
        self._renewed_at = -math.inf

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list. Reads all pages of the folder before it returns the first key, even
        with a limit.
        """
        listed = self._folder_of(prefix, "")
        async for info in in_order(listed, prefix, start_after=start_after, limit=limit):
            yield info

    def _translated(self, error: Exception, operation: str, key: str) -> ObjectStoreError:
        """Translate an error. If the session has ended early, for example while the machine was
        suspended, replace the client, which creates a new session. In this case, the request was
        not executed.
        """
        text = str(error)
        has_ended = _SESSION_ENDED.search(text) or (
            operation == "head" and _BODILESS.search(text)  # a HEAD has no error code
        )
        if not has_ended or _SESSION_REQUEST in text:
            return super()._translated(error, operation, key)
        now = time.monotonic()
        if self._client is not None and now >= self._renewed_at + _RENEWED_INTERVAL_S:
            self._renewed_at = now
            self._client = self._connect()
        return Unavailable(operation, key, "the session of S3 Express One Zone has expired")
