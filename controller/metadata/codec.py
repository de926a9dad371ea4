"""Records to bytes and back: msgpack arrays with the record's tag, UUIDs as 16 bytes.

An unknown tag is an error: older software must not skip facts.
"""

from collections.abc import Iterable

import msgspec

from controller.metadata.records import Record

_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    return _ENCODER.encode(record)


def decode_record(data: bytes | memoryview | msgspec.Raw) -> Record:
    """Raises msgspec.DecodeError (or its ValidationError) for anything that `encode_record` of this
    version does not give.
    """
    return _DECODER.decode(data)


def encode_raw(records: Iterable[Record]) -> list[msgspec.Raw]:
    """As `MetadataBatch.records` carries them."""
    return [msgspec.Raw(_ENCODER.encode(record)) for record in records]
