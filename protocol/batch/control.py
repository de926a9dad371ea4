"""Encode and decode control batches (the markers that end transactions, KIP-98), byte for byte like
Kafka.

A marker is one record in a transactional control batch without a sequence. The serial of the
transaction is in a record header, which Kafka's clients and tools ignore.
"""

import struct
from typing import Final, NamedTuple

from penstock.base.buffers import Buffer
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import CONTROL_MASK, TRANSACTIONAL_MASK
from penstock.protocol.batch.records import Header, Record, decode_records, encode_batch

_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_SERIAL_HEADER: Final = "serial"
_SERIAL: Final = struct.Struct(">q")

NO_SERIAL: Final = -1


class Marker(NamedTuple):
    """The end of a producer's transaction, and the epoch of the coordinator that ended it."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    serial: int = NO_SERIAL
    """The serial of the transaction. It increases with each transaction of the producer within one
    coordinator epoch. NO_SERIAL if the sender did not provide one.
    """


def encode_marker(
    marker: Marker, now_ms: int, *, base_offset: int = 0, leader_epoch: int = -1
) -> bytearray:
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    headers = () if marker.serial <= NO_SERIAL else ((_SERIAL_HEADER, _SERIAL.pack(marker.serial)),)
    return encode_batch(
        [Record(base_offset, now_ms, key, value, headers)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
    )


def decode_marker(batch: Buffer, producer_id: int, producer_epoch: int) -> Marker:
    """Decode a control batch whose header contains this producer. Raises BatchCorrupt unless the
    batch is a commit or an abort.
    """
    try:
        (record,) = decode_records(batch)
        _, kind = _KEY.unpack(record.key or b"")
        _, coordinator_epoch = _VALUE.unpack((record.value or b"")[: _VALUE.size])
        serial = _serial(record.headers)
    except (ValueError, struct.error) as error:
        raise BatchCorrupt(
            f"a control batch of producer {producer_id} contains no marker: {error}"
        ) from None
    if kind not in {_ABORT, _COMMIT}:
        raise BatchCorrupt(f"a control batch of producer {producer_id} has type {kind}")
    return Marker(producer_id, producer_epoch, kind == _COMMIT, coordinator_epoch, serial)


def _serial(headers: tuple[Header, ...]) -> int:
    """Return the serial in the headers, or NO_SERIAL. Raises struct.error for a value of the wrong
    size.
    """
    for key, value in headers:
        if key == _SERIAL_HEADER:
            (serial,) = _SERIAL.unpack(value or b"")
            return int(serial)
    return NO_SERIAL
