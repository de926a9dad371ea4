"""Records of groups in the offsets topic."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.broker.groups.common.records import (
    ConsumerRecordKey,
    decode_consumer_key,
    encode_consumer_key,
)
from penstock.broker.groups.coordinator.records import decode_consumer_value, encode_consumer_value


def decode_unchanged(
    records: Iterable[tuple[bytes, bytes | None]], is_wanted: Callable[[ConsumerRecordKey], bool]
) -> Iterator[tuple[ConsumerRecordKey, Any]]:
    """Yield the wanted records, decoded. The value None is a tombstone. Assert that Penstock
    encodes them into the same records.
    """
    for key, value in records:
        decoded = decode_consumer_key(key)
        if decoded is None or not is_wanted(decoded):
            continue
        assert encode_consumer_key(decoded) == key
        if value is None:
            yield decoded, None
            continue
        found = decode_consumer_value(decoded.kind, value)
        written = encode_consumer_value(decoded.kind, found)
        # Kafka does not sort topics, partitions and tasks.
        assert sorted(written) == sorted(value), (decoded, value)
        assert decode_consumer_value(decoded.kind, written) == found
        yield decoded, found
