"""Encode and decode records: msgpack arrays with the record's tag, UUIDs as 16 bytes.

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
    """Decode one record.

    Raises msgspec.DecodeError (or its ValidationError) for anything that `encode_record` of this
    version does not produce.
    """
    return _DECODER.decode(data)


def encode_raw(records: Iterable[Record]) -> list[msgspec.Raw]:
    """Encode records in the form of `MetadataBatch.records`."""
    return [msgspec.Raw(_ENCODER.encode(record)) for record in records]
