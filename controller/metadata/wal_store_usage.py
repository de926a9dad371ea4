"""Find what rewrites of ranges can remove from WAL stores. Pure."""

from collections import Counter
from typing import NamedTuple

from penstock.base.ids import Millis, ObjectId
from penstock.controller.metadata.image import MetadataImage


class WalStoreUsage(NamedTuple):
    """Objects in WAL stores that logs need, in bytes. retained_bytes: only retained deleted records
    refer to these, which no rewrite removes. oldest_ms: when the first of the others was committed;
    None if there is none.
    """

    rewritable_bytes: int
    retained_bytes: int
    oldest_ms: Millis | None


def rewritable_bytes(image: MetadataImage) -> int:
    """Return the size of the objects in WAL stores that a rewrite can replace.

    O(s + n log m): s streams with retained records, which have n ranges in WAL stores.
    """
    return image.objects.wal_store_bytes - _size_bytes(image, _retained(image))


def wal_store_usage(image: MetadataImage) -> WalStoreUsage:
    """Measure all objects in WAL stores. O(objects committed in place), beside the above."""
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
