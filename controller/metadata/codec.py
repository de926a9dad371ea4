"""Encode and decode records: msgpack arrays that start with the tag of the record. UUIDs are
encoded as 16 bytes.

Unknown tags raise FormatUnknown, because older versions must not skip records. Unknown trailing
elements of a record are ignored.
"""

from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec

from penstock.controller.metadata.records import Record
from penstock.stream.errors import FormatUnknown

_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_TAGS: Final = frozenset(kind.__struct_config__.tag for kind in get_args(Record))


def encode_record(record: Record) -> bytes:
    return _ENCODER.encode(record)


def decode_record(data: bytes | memoryview | msgspec.Raw) -> Record:
    """Decode one record.

    Raises FormatUnknown for an unknown tag, and msgspec.DecodeError (or its subclass
    ValidationError) for invalid bytes.
    """
    try:
        return _DECODER.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text is not UTF-8: {error}") from None
    except msgspec.ValidationError:
        tag = _tag_of(data)
        if tag is None or tag in _TAGS:
            raise
        raise FormatUnknown("of the metadata log", f"a record {tag!r}") from None


def _tag_of(data: bytes | memoryview | msgspec.Raw) -> str | None:
    try:
        found: Any = msgspec.msgpack.decode(data)
    except UnicodeDecodeError:
        return None
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None


def encode_raw(records: Iterable[Record]) -> list[msgspec.Raw]:
    """Encode records for `MetadataBatch.records`."""
    return [msgspec.Raw(_ENCODER.encode(record)) for record in records]
