"""Encode the subscriptions that classic consumers embed in JoinGroup."""

from collections.abc import Iterable, Mapping

from penstock.protocol.primitives import Writer


def subscription(*topics: str, owned: Mapping[str, Iterable[int]] | None = None) -> bytes:
    """Return a subscription of version 1, without user data. owned: partitions by topic."""
    writer = Writer(b"\0\1")
    writer.length(len(topics), False)
    for topic in topics:
        writer.string(topic, False)
    writer.null(False)
    found = owned or {}
    writer.length(len(found), False)
    for topic, indexes in found.items():
        writer.string(topic, False)
        writer.i32s(sorted(indexes), False)
    return bytes(writer)
