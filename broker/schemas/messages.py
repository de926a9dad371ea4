"""Requests from the broker to its worker process, and the responses. On the socket, each message is
encoded as MessagePack with a 4-byte length prefix.
"""

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.broker.schemas.language import ReferencedSchema
from penstock.broker.schemas.rules import FieldRule, SchemaRules

FRAME_BYTES: Final = 4
FAILURES_MAX: Final = 10
"""Maximum number of invalid records in a response."""


class RegisteredSchema(Struct, frozen=True):
    """A schema in a registry. type: empty if no schema has this id. subjects: the subjects under
    which it is registered.
    """

    type: str
    schema: str = ""
    references: tuple[ReferencedSchema, ...] = ()
    subjects: tuple[str, ...] = ()


class CheckSchema(Struct, frozen=True, tag="schema"):
    """Compile the schema of a rule."""

    rule: FieldRule


class CheckBatch(Struct, frozen=True, tag="batch"):
    """Check every record of a batch.

    decompressed_bytes_max: limit for the batch. schemas: the schemas that the worker has requested,
    by id.
    """

    topic: str
    rules: SchemaRules
    batch: memoryview
    decompressed_bytes_max: int
    schemas: dict[int, RegisteredSchema] = {}


Request: TypeAlias = CheckSchema | CheckBatch

VALID: Final = "valid"
MISMATCH: Final = "mismatch"
"""Records are invalid. `failures` contains the first ones, with their index in the batch."""
UNKNOWN: Final = "unknown"
"""The worker needs the schemas in `ids`."""
UNAVAILABLE: Final = "unavailable"
"""The check is currently impossible, for a reason unrelated to the records. `message` contains the
reason.
"""
TOO_LARGE: Final = "too_large"
CORRUPT: Final = "corrupt"
TOO_SLOW: Final = "too_slow"
"""The check exceeded its CPU or memory limit."""


class Verdict(Struct, frozen=True):
    """The response to a check request."""

    kind: str
    message: str = ""
    failures: tuple[tuple[int, str], ...] = ()
    ids: tuple[int, ...] = ()


encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_verdict: Final = msgspec.msgpack.Decoder(Verdict).decode
