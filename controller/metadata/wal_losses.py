"""Metadata about lost WAL slots: the affected partitions, and the losses that an operator has
accepted. See docs/design/wal.md.

An accepted loss is an entry of the key/value store with the lost slots of one WAL. It does not
include slots that are lost later.
"""

from collections.abc import Collection, Iterable

from penstock.base.ids import StreamId, WalSequence
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import PartitionKey
from penstock.stream.ports import BrokerIncarnation

_ROOT = "wal-loss-accepted/"
SLOTS_MAX = 3_000
"""Maximum number of slots of one WAL whose loss can be accepted.

A value in the key/value store has up to 64 KiB, and a slot takes 21 bytes.
"""


def acceptance_key(writer: BrokerIncarnation) -> str:
    return f"{_ROOT}{writer.node_id}/{writer.node_epoch}"


def encode_slots(slots: Collection[WalSequence]) -> bytes:
    """Encode the slots. Raises ValueError if there are more than SLOTS_MAX."""
    if len(slots) > SLOTS_MAX:
        raise ValueError(
            f"the loss of {len(slots):,} slots cannot be accepted at once: at most {SLOTS_MAX:,}"
        )
    return ",".join(str(slot) for slot in sorted(slots)).encode()


def accepted_losses(image: MetadataImage, writer: BrokerIncarnation) -> frozenset[WalSequence]:
    value = image.kv.get(acceptance_key(writer))
    return (
        frozenset(WalSequence(int(slot)) for slot in value.split(b",") if slot.isdigit())
        if value
        else frozenset()
    )


def data_streams_of(
    image: MetadataImage, stream_ids: Iterable[StreamId]
) -> dict[StreamId, StreamId]:
    """Map each stream to the data stream of its partition.

    A stream whose partition does not exist is mapped to itself.
    """
    found: dict[StreamId, StreamId] = {}
    for stream_id in stream_ids:
        stream = image.streams.get(stream_id)
        partition = None
        if stream is not None:
            key = PartitionKey(stream.topic_id, stream.partition)
            # The streams of a deleted topic may remain open until the WAL of its leader is
            # recovered.
            partition = image.topics.partition(key) or image.frozen_topics.partition(key)
        found[stream_id] = stream_id if partition is None else partition.data_stream_id
    return found
