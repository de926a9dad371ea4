"""What the broker asks its worker process, and the answers. On the socket each one is MessagePack
behind its length in 4 bytes.
"""

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.broker.schemas.language import ReferencedSchema
from penstock.broker.schemas.rules import FieldRule, SchemaRules

FRAME_BYTES: Final = 4
FAILURES_MAX: Final = 10
"""Records of a batch that an answer names."""


class RegisteredSchema(Struct, frozen=True):
    """A schema of a registry. type: empty if there is none of this id. subjects: those under which
    it is registered.
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

    decompressed_bytes_max: limit of the batch. schemas: what the worker asked for, by id.
    """

    topic: str
    rules: SchemaRules
    batch: memoryview
    decompressed_bytes_max: int
    schemas: dict[int, RegisteredSchema] = {}


Request: TypeAlias = CheckSchema | CheckBatch

VALID: Final = "valid"
MISMATCH: Final = "mismatch"
"""Records do not match: `failures` has the first ones, by their index in the batch."""
UNKNOWN: Final = "unknown"
"""The worker needs the schemas of `ids`."""
UNAVAILABLE: Final = "unavailable"
"""The check is not possible here, whatever the records are: `message` says why."""
TOO_LARGE: Final = "too_large"
CORRUPT: Final = "corrupt"
TOO_SLOW: Final = "too_slow"
"""The check took more CPU or memory than it may."""


class Verdict(Struct, frozen=True):
    """The answer."""

    kind: str
    message: str = ""
    failures: tuple[tuple[int, str], ...] = ()
    ids: tuple[int, ...] = ()


encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_verdict: Final = msgspec.msgpack.Decoder(Verdict).decode
