"""Store the start of a streaming query: Spark requests it again after a crash in the first
micro-batch, and does not pass the location of its checkpoint.

Source: Spark `KafkaSourceInitialOffsetWriter` (`sources/0/0` of the checkpoint);
`docs/reference/formats.md` 10.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from penstock.lake.arrow.background import background
from penstock.lake.arrow.cluster import DEADLINE_S
from penstock.lake.spark.cluster import SparkCluster
from penstock.lake.spark.offsets import OffsetsJson
from penstock.objectstore.errors import ObjectNotFound, PreconditionFailed
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.keys import spark_query_prefix

_GETS_MAX = 16


class _Start(msgspec.Struct, frozen=True):
    offsets: OffsetsJson


class _Topic(msgspec.Struct, frozen=True):
    topic_id: str


_Stored = TypeVar("_Stored", _Start, _Topic)


@dataclass(frozen=True, slots=True)
class QueryStart:
    """The location of a query's start: a name in the store of the cluster (`query_id`), or a store
    URL (`location`).

    Invariant: the first writer wins (`If-None-Match: *`), and all others use the stored start.
    Older versions also stored topic ids. A stored start never changes; if its prefix is deleted,
    the query starts over.
    """

    cluster: SparkCluster
    query_id: str
    location: str

    def load(self) -> OffsetsJson | None:
        found = background().run(self._get("start", _Start), DEADLINE_S)
        return None if found is None else found.offsets

    def decide(self, offsets: OffsetsJson) -> OffsetsJson:
        """Store these offsets unless another process has stored a start. Return the stored
        offsets.
        """
        return background().run(self._put(_Start(offsets)), DEADLINE_S).offsets

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Return the topic ids that older versions stored."""
        return background().run(self._topic_ids(names), DEADLINE_S)

    async def _topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        turns = asyncio.Semaphore(_GETS_MAX)

        async def load(name: str) -> _Topic | None:
            async with turns:
                return await self._get(f"topics/{name}", _Topic)

        found = await asyncio.gather(*map(load, names))
        return {name: item.topic_id for name, item in zip(names, found, strict=True) if item}

    async def _put(self, value: _Start) -> _Start:
        store, prefix = await self._place()
        try:
            await store.put_if_absent(f"{prefix}start", msgspec.json.encode(value))
        except PreconditionFailed:
            found = await self._get("start", _Start)
            if found is None:
                raise
            return found
        return value

    async def _get(self, name: str, kind: type[_Stored]) -> _Stored | None:
        store, prefix = await self._place()
        try:
            return msgspec.json.decode(await store.get(prefix + name), type=kind)
        except ObjectNotFound:
            return None
        except msgspec.DecodeError as error:
            raise ObjectCorrupt(
                prefix + name, 0, f"does not contain the start of a query: {error}"
            ) from None

    async def _place(self) -> tuple[ObjectStore, str]:
        if self.location:
            return await background().store(self.location), ""
        view = await self.cluster.view()
        if not view.cluster_id:
            await view.refresh()
        return await background().store(self.cluster.store_url), spark_query_prefix(
            view.cluster_id, self.query_id
        )
