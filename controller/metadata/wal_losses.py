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
SLOTS_MAX = 100_000
"""Maximum number of slots of one WAL whose loss can be accepted."""
_SINGLE_MAX = 3_000
_RUNS_MAX = 1_500
"""A value in the key/value store is limited to 64 KiB. A slot takes 21 bytes, a run of slots takes
42.
"""


def acceptance_key(writer: BrokerIncarnation) -> str:
    return f"{_ROOT}{writer.node_id}/{writer.node_epoch}"


def encode_slots(slots: Collection[WalSequence]) -> bytes:
    """Encode the slots: individually or, if there are many, as the first and last slot of each run.
    Raises ValueError if they do not fit.
    """
    if len(slots) <= _SINGLE_MAX:
        return ",".join(str(slot) for slot in sorted(slots)).encode()
    runs: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if runs and runs[-1][1] + 1 == slot:
            runs[-1] = runs[-1][0], slot
        else:
            runs.append((slot, slot))
    if len(slots) > SLOTS_MAX or len(runs) > _RUNS_MAX:
        raise ValueError(
            f"the loss of {len(slots):,} slots in {len(runs):,} runs cannot be accepted: at most"
            f" {SLOTS_MAX:,} slots in {_RUNS_MAX:,} runs"
        )
    return ",".join(f"{first}-{last}" for first, last in runs).encode()


def accepted_losses(image: MetadataImage, writer: BrokerIncarnation) -> frozenset[WalSequence]:
    found: set[WalSequence] = set()
    for item in (image.kv.get(acceptance_key(writer)) or b"").split(b","):
        first, _, last = item.partition(b"-")
        if first.isdigit() and (last or first).isdigit():
            end = min(int(last or first) + 1, int(first) + SLOTS_MAX)
            found.update(map(WalSequence, range(int(first), end)))
    return frozenset(found)


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
