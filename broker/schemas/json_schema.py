"""JSON Schema, drafts 4 to 2020-12.

Regular expressions use Rust's `regex`, which takes linear time; schemas with look-around or
back-references are rejected. References are resolved only within the schema and the given
references; nothing is fetched.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, cast

import jsonschema_rs
import msgspec

from penstock.broker.schemas.language import OneMessageSchema, ReferencedSchema
from penstock.protocol.registry.model import SchemaInvalid, brief

_decode: Final = msgspec.json.Decoder().decode


class _JsonValidator:
    def __init__(self, validator: Any, title: str) -> None:  # noqa: ANN401 - a class of Rust
        self._validator = validator
        self.record_name = title

    def problem(self, data: bytes) -> str:
        try:
            value = _decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return f": it is not JSON: {error}"
        try:
            if self._validator.is_valid(value):
                return ""
            found = next(self._validator.iter_errors(value))
        except (ValueError, RecursionError, StopIteration) as failure:
            return f": it cannot be checked: {brief(str(failure))}"
        return f"{_path(found.instance_path)}: {brief(found.message)}"

    def value(self, data: bytes) -> Any:  # noqa: ANN401 - a value of JSON
        return _decode(data)


def compile_text(text: str, references: Sequence[ReferencedSchema]) -> OneMessageSchema:
    """Compile a schema. Raises SchemaInvalid."""
    schema = _parsed(text)
    try:
        registry = jsonschema_rs.Registry(
            [(reference.name, _parsed(reference.schema)) for reference in references],
            retriever=_refuse,
        )
        validator = jsonschema_rs.validator_for(
            schema,
            registry=registry,
            retriever=_refuse,
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except jsonschema_rs.ValidationError as error:
        raise SchemaInvalid(_explained(error)) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaInvalid(f"it is not a JSON Schema: {brief(str(error))}") from None
    title = cast("dict[str, Any]", schema).get("title") if isinstance(schema, dict) else None
    return OneMessageSchema(_JsonValidator(validator, title if isinstance(title, str) else ""))


def _parsed(text: str) -> Any:  # noqa: ANN401 - a value of JSON
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise SchemaInvalid(f"it is not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise SchemaInvalid("it is nested too deeply") from None
    if not isinstance(parsed, dict | bool):
        raise SchemaInvalid("a JSON Schema is an object, true or false")
    return cast("Any", parsed)


def _refuse(uri: str) -> Any:  # noqa: ANN401 - raises always
    raise ValueError(f"{uri} is not part of the schema, and nothing is fetched")


def _explained(error: Any) -> str:  # noqa: ANN401 - an error of Rust
    at = _path(error.instance_path).removeprefix(".") or "the top"
    if error.instance_path[-1:] == ["pattern"]:
        return (
            f"it is not a JSON Schema at {at}: {brief(error.message)}: look-around and"
            " back-references are not allowed in a pattern"
        )
    return f"it is not a JSON Schema at {at}: {brief(error.message)}"


def _path(parts: Sequence[str | int]) -> str:
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return brief(shown)
