"""Compute a hash of a group's topics and their partition counts."""

from collections.abc import Iterable
from hashlib import blake2b

from penstock.broker.groups.common.model import TopicsView


def metadata_hash_of(names: Iterable[str], topics: TopicsView) -> int:
    """Return a hash of the existing topics and their partition counts; 0 if none exist."""
    digest = blake2b(digest_size=8)
    is_empty = True
    for name in sorted(names):
        topic_id = topics.id_of(name)
        if topic_id is not None:
            is_empty = False
            digest.update(f"{name} {topic_id} {topics.partition_count(topic_id)}\n".encode())
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)
