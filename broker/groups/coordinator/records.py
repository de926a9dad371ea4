"""Encode and decode the values of consumer, share and streams group records, by key kind."""

from typing import Final

from penstock.broker.groups.common.records import (
    ConsumerRecordKind,
    ConsumerValue,
    MalformedGroupRecord,
)
from penstock.broker.groups.consumer.records import CONSUMER_CODECS
from penstock.broker.groups.share.records import SHARE_CODECS
from penstock.broker.groups.streams.records import STREAMS_CODECS
from penstock.protocol.errors import WireError
from penstock.protocol.primitives import Reader, Writer

_VALUE_VERSION: Final = 0
_CODECS: Final = {**CONSUMER_CODECS, **SHARE_CODECS, **STREAMS_CODECS}


def encode_consumer_value(kind: ConsumerRecordKind, value: ConsumerValue) -> bytes:
    writer = Writer(_VALUE_VERSION.to_bytes(2, "big"))
    _CODECS[kind][0](writer, value)
    return bytes(writer)


def decode_consumer_value(kind: ConsumerRecordKind, data: bytes) -> ConsumerValue:
    """Decode the value of a record with a key of this kind. Raises MalformedGroupRecord."""
    try:
        reader = Reader(data)
        version = reader.i16()
        if version != _VALUE_VERSION:
            raise MalformedGroupRecord(
                f"unknown version {version} of a {kind.name} value ({_VALUE_VERSION} is supported)"
            )
        return _CODECS[kind][1](reader)
    except (WireError, ValueError) as error:
        raise MalformedGroupRecord(str(error)) from error
