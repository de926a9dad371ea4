"""Determine the number of bytes that range rewrites can remove from WAL stores."""

from collections import Counter
from typing import NamedTuple

from penstock.base.ids import Millis, ObjectId
from penstock.controller.metadata.image import MetadataImage


class WalStoreUsage(NamedTuple):
    """Sizes of the objects in WAL stores that logs refer to. retained_bytes: objects that only
    retained deleted records refer to; rewrites do not remove them. rewritable_bytes: all other
    objects. oldest_ms: time of the first commit among the rewritable ones, or None if there are
    none.
    """

    rewritable_bytes: int
    retained_bytes: int
    oldest_ms: Millis | None


def rewritable_bytes(image: MetadataImage) -> int:
    """Return the size of the objects in WAL stores that rewrites can remove.

    This takes O(s + n log m) for s streams with retained records and n ranges of them in WAL
    stores.
    """
    return image.objects.wal_store_bytes - _size_bytes(image, _retained(image))


def wal_store_usage(image: MetadataImage) -> WalStoreUsage:
    """Measure all objects in WAL stores. In addition to the time of `rewritable_bytes`, this takes
    O(objects committed in place).
    """
    retained = _retained(image)
    size_bytes = _size_bytes(image, retained)
    return WalStoreUsage(
        image.objects.wal_store_bytes - size_bytes,
        size_bytes,
        image.objects.wal_store_oldest_ms(retained),
    )


def _retained(image: MetadataImage) -> frozenset[ObjectId]:
    refs = Counter(
        object_id
        for stream in image.streams.keeping()
        for start, object_id in image.objects.wal_store_ranges(stream.stream_id).items()
        if not image.streams.has_entry(stream.stream_id, start, object_id)
    )
    states = map(image.objects.get, refs)
    return frozenset(
        state.object_id
        for state in states
        if state is not None and state.refs == refs[state.object_id]
    )


def _size_bytes(image: MetadataImage, object_ids: frozenset[ObjectId]) -> int:
    states = map(image.objects.get, object_ids)
    return sum(state.size_bytes for state in states if state is not None)
