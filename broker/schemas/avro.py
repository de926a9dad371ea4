"""Avro: a value must be the binary encoding of its schema, without trailing bytes.

fastavro decodes the values. After a failure, a second, slower reader finds the invalid field.
"""

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final, cast

import fastavro as _fastavro

from penstock.broker.schemas.language import OneMessageSchema, ReferencedSchema
from penstock.protocol.registry.model import SchemaInvalid, brief

fastavro: Final[Any] = _fastavro
_DEPTH_MAX: Final = 200
_FIXED_BYTES: Final = {"float": 4, "double": 8}
_VARINT_BYTES_MAX: Final = 10


class _AvroValidator:
    def __init__(self, schema: Any, named: dict[str, Any]) -> None:  # noqa: ANN401 - of fastavro
        self._schema, self._named = schema, named
        self.record_name = str(_fields(schema).get("name", ""))

    def problem(self, data: bytes) -> str:
        stream = BytesIO(data)
        try:
            fastavro.schemaless_reader(stream, self._schema, None)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does with bad bytes
            return self._located(data) or f": it is not Avro of this schema: {brief(repr(error))}"
        left = len(data) - stream.tell()
        return f": {left} bytes are left over" if left else ""

    def value(self, data: bytes) -> Any:  # noqa: ANN401 - as the schema says
        return fastavro.schemaless_reader(BytesIO(data), self._schema, None)

    def _located(self, data: bytes) -> str:
        try:
            _Reader(data, self._named).skip(self._schema, "", 0)
        except _Mismatch as found:
            return str(found)
        return ""


def compile_text(text: str, references: Sequence[ReferencedSchema]) -> OneMessageSchema:
    """Compile a schema. Raises SchemaInvalid."""
    named: dict[str, Any] = {}
    try:
        for reference in references:
            fastavro.parse_schema(_parsed(reference.schema), named_schemas=named)
        schema = fastavro.parse_schema(_parsed(text), named_schemas=named)
    except SchemaInvalid:
        raise
    except Exception as error:  # noqa: BLE001 - fastavro raises what Python does with bad schemas
        what = f"{type(error).__name__}: {error}"
        raise SchemaInvalid(f"it is not an Avro schema: {brief(what)}") from None
    return OneMessageSchema(_AvroValidator(schema, named))


def _parsed(text: str) -> Any:  # noqa: ANN401 - a value of JSON
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise SchemaInvalid(f"it is not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise SchemaInvalid("it is nested too deeply") from None


def _fields(schema: Any) -> dict[str, Any]:  # noqa: ANN401 - of fastavro
    """Return the schema if it is an object, otherwise an empty dict."""
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}


class _Mismatch(Exception):
    """Raised if the bytes at a path do not match their type."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")


class _Reader:
    """Skips over a value, and raises _Mismatch at the first invalid field."""

    def __init__(self, data: bytes, named: dict[str, Any]) -> None:
        self._data, self._named, self._at = data, named, 0

    def skip(self, schema: Any, path: str, depth: int) -> None:  # noqa: ANN401 - of fastavro
        if depth > _DEPTH_MAX:
            raise _Mismatch(path, f"it is nested more than {_DEPTH_MAX} times")
        if isinstance(schema, list):
            branches = cast("Any", schema)
            self.skip(branches[self._index(len(branches), "branch", path)], path, depth + 1)
            return
        kind: Any = _fields(schema).get("type", schema)
        if isinstance(kind, dict | list):
            self.skip(kind, path, depth + 1)
        elif kind in self._named and not isinstance(schema, dict):
            self.skip(self._named[kind], path, depth + 1)
        else:
            self._complex(kind, schema, path, depth)

    def _complex(self, kind: str, schema: Any, path: str, depth: int) -> None:  # noqa: ANN401
        match kind:
            case "record" | "error":
                for field in schema["fields"]:
                    self.skip(field["type"], f"{path}.{field['name']}", depth + 1)
            case "array":
                items = schema["items"]
                self._blocks(path, lambda at: self.skip(items, f"{path}[{at}]", depth + 1))
            case "map":
                self._blocks(path, lambda _: self._entry(schema["values"], path, depth))
            case "enum":
                self._index(len(schema["symbols"]), "symbol", path)
            case "fixed":
                self._take(schema["size"], path, "fixed")
            case _:
                self._primitive(kind, path)

    def _entry(self, values: Any, path: str, depth: int) -> None:  # noqa: ANN401 - of fastavro
        key = self._text(path, "key of a map")
        self.skip(values, f"{path}.{brief(key)}", depth + 1)

    def _blocks(self, path: str, item: Callable[[int], None]) -> None:
        at = 0
        while count := self._number(path, "count"):
            if count < 0:
                self._number(path, "size")
            before = self._at
            for _ in range(abs(count)):
                item(at)
                at += 1
                if self._at == before:
                    break  # the remaining empty items cannot fail

    def _primitive(self, kind: str, path: str) -> None:
        if kind == "string":
            self._text(path, kind)
        elif kind == "bytes":
            self._take(self._number(path, kind), path, kind)
        elif kind in {"int", "long"}:
            self._number(path, kind)
        elif kind == "boolean":
            if self._take(1, path, kind)[0] > 1:
                raise _Mismatch(path, "it is not a boolean")
        elif kind in _FIXED_BYTES:
            self._take(_FIXED_BYTES[kind], path, kind)

    def _index(self, count: int, what: str, path: str) -> int:
        index = self._number(path, what)
        if not 0 <= index < count:
            raise _Mismatch(path, f"{what} {index} does not exist, only 0 to {count - 1}")
        return index

    def _text(self, path: str, what: str) -> str:
        try:
            return self._take(self._number(path, what), path, what).decode()
        except UnicodeDecodeError:
            raise _Mismatch(path, "it is not UTF-8") from None

    def _number(self, path: str, what: str) -> int:
        number = 0
        for shift in range(_VARINT_BYTES_MAX):
            byte = self._take(1, path, what)[0]
            number |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise _Mismatch(path, f"it is not a number of type {what}")

    def _take(self, size: int, path: str, what: str) -> bytes:
        left = len(self._data) - self._at
        if not 0 <= size <= left:
            raise _Mismatch(path, f"{what} needs {size} bytes, but {left} are left")
        self._at += size
        return self._data[self._at - size : self._at]
