"""Process that decodes Avro and Protobuf keys and values for the web console.

Schemas and records are untrusted, so it has the limits of the broker's validation process
(`broker.schemas.worker`), does not open connections, and only reads its standard input.
"""

from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from penstock.broker.schemas.language import CompiledSchema, ReferencedSchema, compile_schema
from penstock.broker.schemas.worker import serve
from penstock.deploy.records.json_numbers import named
from penstock.protocol.registry.model import CannotCheck, SchemaInvalid, brief

COMPILED_COUNT_MAX: Final = 100


class DecodeValue(Struct, frozen=True):
    """A request to decode bytes with a schema.

    kind: avro or protobuf. message: the message of a Protobuf value without a frame; empty for the
    first message of the schema. is_framed: whether the bytes followed a schema id; for Protobuf,
    they then begin with the indexes of the message. chars_max: maximum length of the response.
    """

    kind: str
    schema: str
    references: tuple[ReferencedSchema, ...]
    message: str
    is_framed: bool
    data: bytes
    chars_max: int


class DecodedValue(Struct, frozen=True):
    """The response: indented JSON, or an error. is_cut: whether the text was truncated to
    chars_max.
    """

    text: str = ""
    problem: str = ""
    is_cut: bool = False


decode_request: Final = msgspec.msgpack.Decoder(DecodeValue).decode
decode_response: Final = msgspec.msgpack.Decoder(DecodedValue).decode
encode: Final = msgspec.msgpack.Encoder().encode


def main() -> None:
    serve(lambda request: encode(decoded(decode_request(request))))


def decoded(request: DecodeValue) -> DecodedValue:
    """Decode a value. Does not raise."""
    try:
        compiled = _compiled(request.kind, request.schema, request.references)
        if request.is_framed:
            validator, data = compiled.framed(request.data)
        else:
            validator, data = compiled.validator(request.message), request.data
        if problem := validator.problem(data):
            return DecodedValue(problem=problem)
        text = msgspec.json.format(msgspec.json.encode(named(validator.value(data)))).decode()
    except (SchemaInvalid, CannotCheck) as error:
        return DecodedValue(problem=f": {error}")
    except MemoryError:
        _compiled.cache_clear()
        return DecodedValue(problem=": there is not enough memory for it")
    except Exception as error:  # noqa: BLE001 - libraries raise what Python does with bad input
        return DecodedValue(problem=f": {brief(repr(error))}")
    return DecodedValue(text[: request.chars_max], is_cut=len(text) > request.chars_max)


@lru_cache(COMPILED_COUNT_MAX)
def _compiled(kind: str, schema: str, references: tuple[ReferencedSchema, ...]) -> CompiledSchema:
    return compile_schema(kind, schema, references)


if __name__ == "__main__":
    main()
