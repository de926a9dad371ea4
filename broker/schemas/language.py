"""The interface to schema languages and their modules. The libraries, which are extras, are
imported only by `json_schema`, `avro` and `protobuf` when needed.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from msgspec import Struct

from penstock.base.extras import install_hint
from penstock.protocol.registry.model import CannotCheck, brief

_EXTRA: Final = "schemas"
_MODULES: Final = {
    "json": "penstock.broker.schemas.json_schema",
    "avro": "penstock.broker.schemas.avro",
    "protobuf": "penstock.broker.schemas.protobuf",
}


class ReferencedSchema(Struct, frozen=True):
    """A schema that a registered schema refers to by this name."""

    name: str
    schema: str


class Validator(Protocol):
    """A schema that can validate values."""

    @property
    def record_name(self) -> str:
        """Return the full name of the record, or "" if it has none."""
        ...

    def problem(self, data: bytes) -> str:
        """Return the path of the first invalid field and the reason, as `.a.b: text` or `: text`.
        Return "" if the value is valid.
        """
        ...

    def value(self, data: bytes) -> Any:  # noqa: ANN401 - what msgspec writes as JSON
        """Decode a valid value to JSON-serializable objects."""
        ...


class CompiledSchema(Protocol):
    """A compiled schema. A Protobuf schema may define several messages."""

    def validator(self, message: str) -> Validator:
        """Return the validator of a message, by default the first one. Raises SchemaInvalid."""
        ...

    def framed(self, data: bytes) -> tuple[Validator, bytes]:
        """Return the validator and the payload of a value that follows a schema id. Raises
        SchemaInvalid for a message that does not exist.
        """
        ...


def compile_schema(kind: str, text: str, references: Sequence[ReferencedSchema]) -> CompiledSchema:
    """Compile a schema. kind: json, avro or protobuf. Raises SchemaInvalid, CannotCheck."""
    if kind not in _MODULES:
        raise CannotCheck(f"schemas of type {brief(kind)} cannot be checked")
    try:
        compiled: CompiledSchema = import_module(_MODULES[kind]).compile_text(text, references)
    except ImportError as error:
        raise CannotCheck(f"the package {error.name} is missing: {install_hint(_EXTRA)}") from None
    return compiled


class OneMessageSchema:
    """A compiled schema with a single validator."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator

    def validator(self, message: str) -> Validator:
        return self._validator

    def framed(self, data: bytes) -> tuple[Validator, bytes]:
        return self._validator, data
