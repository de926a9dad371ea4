"""Read Avro values of recursive types without exhausting the stack."""

from typing import Any, cast

import fastavro
import fastavro._read_py as pure_python

_compiled: Any = cast("Any", fastavro).schemaless_reader
_bounded: Any = cast("Any", pure_python).schemaless_reader


def reader_of(schema: Any, named: dict[str, Any]) -> Any:  # noqa: ANN401 - of fastavro
    """Return fastavro's `schemaless_reader` for a parsed schema. For recursive types, this is the
    Python implementation, which raises RecursionError for a deeply nested value; the compiled
    implementation would crash the process.
    """
    return _bounded if _is_recursive(schema, named, frozenset(), set()) else _compiled


def _is_recursive(
    schema: Any,  # noqa: ANN401 - of fastavro
    named: dict[str, Any],
    outer: frozenset[str],
    done: set[str],
) -> bool:
    """Return whether a type contains itself. outer: names of the enclosing types. done: names of
    types that are known to be non-recursive.
    """
    if isinstance(schema, list):
        return any(_is_recursive(item, named, outer, done) for item in cast("Any", schema))
    if isinstance(schema, str):
        if schema in outer or schema in done or schema not in named:
            return schema in outer
        return _is_recursive(named[schema], named, outer, done)
    kind: Any = schema["type"]
    if isinstance(kind, dict | list):
        return _is_recursive(kind, named, outer, done)
    parts = [schema[key] for key in ("items", "values") if key in schema]
    parts += [field["type"] for field in schema.get("fields", ())]
    inner = outer | {schema["name"]} if "name" in schema else outer
    if any(_is_recursive(part, named, inner, done) for part in parts):
        return True
    done |= inner - outer
    return False
