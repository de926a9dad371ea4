"""Access Google Cloud Storage through its XML API ("Preconditions").

The port's etag is the generation of the object, because a PUT supports `x-goog-if-generation-match`
but no condition on the ETag. obstore's LIST does not return generations, so its entries contain the
ETag instead, which is a hash of the content.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from obstore.store import GCSStore as Client

from penstock.objectstore.config import GcsConfig
from penstock.objectstore.errors import PreconditionFailed
from penstock.objectstore.gcs_credentials import credentials, hidden_variables
from penstock.objectstore.gcs_errors import gcs_dialect
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.ports import Body
from penstock.objectstore.remote import RemoteStore, client_options, make_client


class GcsStore(RemoteStore):
    """Accesses the objects of one Google Cloud Storage bucket."""

    def __init__(
        self,
        config: GcsConfig,
        environ: Mapping[str, str] = os.environ,
        meter: StoreMeter | None = None,
    ) -> None:
        """config: the wrappers of `open_store` implement its `prefix` and `deadline_ms`. meter:
        counts each sign-in.

        Raises InvalidStoreConfig for unusable credentials.
        """
        options = {
            "client_options": client_options(config),
            "base_url": config.endpoint and config.endpoint.rstrip("/"),
            **credentials(config, environ, meter),
        }
        with hidden_variables():
            client = make_client(Client, config.bucket, options)
        super().__init__(client, gcs_dialect(config), config.connections_max)

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match. Google also responds with 412 if the object does not
        exist.
        """
        self._check(key)
        # Generation 0 would require that there is no object.
        if not (etag.isascii() and etag.isdecimal() and int(etag)):
            raise await self._refusal(key)
        try:
            return await self._put("put_if_match", key, body, {"version": etag})
        except PreconditionFailed:
            raise await self._refusal(key) from None

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete. Google deletes one object per request."""
        for key in keys:
            self._check(key)
        await self._delete_each(keys)

    def _version(self, meta: Any) -> str:  # noqa: ANN401 (one of obstore's dicts)
        return str(meta["version"] or meta["e_tag"])
