"""Access Azure Blob Storage.

Azure has no suffix ranges, so reading a tail takes a HEAD and a GET. Azure changes backslashes and
trailing dots in keys and may sort by UTF-16, so affected keys are rejected. Source: Azure Blob
Storage REST API; "Naming and referencing containers, blobs, and metadata".
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import obstore
from obstore.store import AzureStore as Client

from penstock.objectstore.azure_credentials import options_of
from penstock.objectstore.azure_errors import azure_dialect
from penstock.objectstore.config import AzureConfig
from penstock.objectstore.errors import InvalidKey, ObjectNotFound, PreconditionFailed
from penstock.objectstore.keys import check_key
from penstock.objectstore.ports import Body, ObjectTail
from penstock.objectstore.remote import RemoteStore, client_options, make_client

_DELETE_BATCH_COUNT: Final = 256
_FORBIDDEN: Final = re.compile(r"\\|[^\x00-\uffff]|\.(?:/|\Z)")


class AzureStore(RemoteStore):
    """Accesses the blobs of one container."""

    def __init__(self, config: AzureConfig, environ: Mapping[str, str] = os.environ) -> None:
        """config: the wrappers of `open_store` implement its `prefix` and `deadline_ms`.

        Raises InvalidStoreConfig for unusable credentials.
        """
        options = {"client_options": client_options(config), **options_of(config, environ)}
        super().__init__(
            make_client(Client, config.container, options),
            azure_dialect(config),
            config.connections_max,
        )

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail. Sends two requests; raises Unavailable, which is retried, if
        the object was replaced in between.
        """
        assert length > 0, f"tail of {length} bytes"
        info = await self.head(key)
        if not info.size_bytes:
            return ObjectTail(data=b"", size_bytes=0)
        wanted = (max(0, info.size_bytes - length), info.size_bytes)
        data, size_bytes = await self._get(
            "get_tail", key, {"range": wanted, "if_match": info.etag}
        )
        return ObjectTail(data=data, size_bytes=size_bytes)

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match. Azure also responds with 412 if the blob does not exist."""
        try:
            return await super().put_if_match(key, body, etag)
        except PreconditionFailed:
            raise await self._refusal(key) from None

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete. Sends one request per 256 keys or, if some are absent, one per
        key, because the client reports only the first failure of a batch.
        """
        for key in keys:
            self._check(key)
        for start in range(0, len(keys), _DELETE_BATCH_COUNT):
            batch = list(keys[start : start + _DELETE_BATCH_COUNT])
            try:
                await self._call(
                    "delete", batch[0], partial(obstore.delete_async, self._client, batch)
                )
            except ObjectNotFound:
                await self._delete_each(batch)

    def _check(self, key: str) -> None:
        check_key(key)
        if _FORBIDDEN.search(key):
            raise InvalidKey(
                key,
                "backslashes, segments that end with a dot and characters beyond U+FFFF are not"
                " allowed on Azure",
            )

    def _version(self, meta: Any) -> str:  # noqa: ANN401 (one of obstore's dicts)
        """Return the etag, adding the quotes that Azure's LIST omits."""
        etag = str(meta["e_tag"])
        return etag if etag.startswith('"') else f'"{etag}"'
