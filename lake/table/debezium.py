"""Unwrap Debezium's change events to rows: `after` becomes the row, and a delete removes the row.

Every other event (truncate, messages, schema changes, transaction metadata) is a dead letter. JSON
events may be wrapped in `schema` and `payload`; a JSON schema may describe the row or the envelope.
There is no I/O. Source: Debezium's "Change events" and Kafka Connect's JsonConverter.
"""

from typing import Any, Final, cast

import msgspec

from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.json_values import JsonDecoder
from penstock.lake.table.writers import FindSchema, SchemaSource
from penstock.protocol.registry.model import StoredSchema
from penstock.protocol.registry.wire_format import SchemaKey

_ROWS: Final = {"c", "r", "u"}
_DELETE: Final = "d"
_Json = dict[str, Any]


class _Event(msgspec.Struct):
    """An event, or its wrapper. Absent members are empty bytes."""

    op: str | None = None
    after: msgspec.Raw = msgspec.Raw(b"")
    payload: msgspec.Raw = msgspec.Raw(b"")


class JsonUnwrapper:
    errors = JsonDecoder.errors

    def __init__(self, columns: SchemaSource, find: FindSchema | None) -> None:
        if isinstance(columns, StoredSchema):
            text = _row_schema(columns.text)
            self._rows = JsonDecoder(StoredSchema(columns.type, text, columns.references), find)
        else:
            self._rows = JsonDecoder(_row_schema(columns).encode(), find)
        self.struct = self._rows.struct
        self._events = msgspec.json.Decoder(_Event)

    def row(self, value: memoryview, schema_id: SchemaKey | None) -> _Json | None:
        event = self._events.decode(value)
        if event.op is None and (payload := memoryview(event.payload)).nbytes:
            if _is_null(payload):
                return None  # a tombstone
            event = self._events.decode(event.payload)
        if _is_delete(event.op):
            return None
        after = memoryview(event.after)
        if not after.nbytes or _is_null(after):
            raise ValueError(_no_row(event.op))
        return self._rows.row(after, schema_id)


class StructUnwrapper:
    """Unwraps the rows of a decoder whose schema is the envelope."""

    def __init__(self, events: Any) -> None:  # noqa: ANN401 - a RowDecoder of `values`, which imports this module
        self._events = events
        self.errors = events.errors
        fields = {field.name: field.type for field in events.struct}
        if not {"op", "after"} <= fields.keys():
            raise InvalidSchema(
                "the schema is not that of Debezium's envelope, which has the fields op and after:"
                " use the schema of the topic's values, without ExtractNewRecordState"
            )
        self.struct = fields["after"]

    def row(self, value: memoryview, schema_id: SchemaKey | None) -> _Json | None:
        event: _Json = self._events.row(value, schema_id) or {}  # null is not a valid event
        if _is_delete(event.get("op")):
            return None
        after = cast("_Json | None", event.get("after"))
        if after is None:
            raise ValueError(_no_row(event.get("op")))
        return after


def _is_null(json: memoryview) -> bool:
    """Return whether the JSON value is null, without copying longer values."""
    return json.nbytes == len(b"null") and json.tobytes() == b"null"


def _is_delete(op: str | None) -> bool:
    """Raise ValueError unless the event is a row or a delete."""
    if op in _ROWS:
        return False
    if op == _DELETE:
        return True
    if op == "t":
        raise ValueError("Debezium truncated the source table (op t): remove the rows with SQL")
    if not op:
        raise ValueError(
            "the value is not a Debezium change event: it has no op, like schema changes and"
            " transaction metadata"
        )
    raise ValueError(f"Debezium event with op {op[:20]!r} has no row")


def _no_row(op: str | None) -> str:
    return f"Debezium event with op {op!r} has no after"


def _row_schema(text: bytes | str) -> str:
    """Return the schema of `after` if this is an envelope; otherwise the schema is already that of
    the row.
    """
    try:
        root = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidSchema(f"the schema is not JSON: {error}") from None
    properties = cast("_Json", root).get("properties") if isinstance(root, dict) else None
    if not isinstance(properties, dict) or not {"op", "after"} <= properties.keys():
        return msgspec.json.encode(root).decode()
    after = _object(cast("_Json", properties)["after"])
    choices = [*_list(after.get("oneOf", [])), *_list(after.get("anyOf", []))]
    solid = [choice for choice in map(_object, choices) if choice.get("type") != "null"]
    kept = {
        name: value
        for name, value in cast("_Json", root).items()
        if name not in {"type", "properties", "required"}
    }
    return msgspec.json.encode(kept | (solid[0] if solid else after)).decode()


def _object(schema: Any) -> _Json:  # noqa: ANN401 - any JSON
    if not isinstance(schema, dict):
        raise _invalid_after(schema)
    return cast("_Json", schema)


def _list(schemas: Any) -> list[Any]:  # noqa: ANN401 - any JSON
    if not isinstance(schemas, list):
        raise _invalid_after(schemas)
    found: list[Any] = cast("Any", schemas)
    return found


def _invalid_after(found: object) -> InvalidSchema:
    text = msgspec.json.encode(found).decode()[:40]
    return InvalidSchema(
        f"the schema of after in Debezium's envelope contains {text}: it must be that of a row, an"
        " object, or null and an object in oneOf"
    )
