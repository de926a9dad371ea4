"""Parse JSON and keep the text of its numbers. DuckDB would round fractions to DOUBLE.

Otherwise, values are the same as DuckDB's: the text of nested JSON has no spaces, and the first of
several members with the same name counts. There is no I/O.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from penstock.lake.sql.inference import JsonType, ListOf, StructOf


class _Number(NamedTuple):
    text: str


class _Object(NamedTuple):
    members: list[tuple[str, Any]]

    def get(self, name: str) -> Any:  # noqa: ANN401 - parsed JSON
        return next((value for key, value in self.members if key == name), None)


_parser = json.JSONDecoder(object_pairs_hook=_Object, parse_float=_Number, parse_int=_Number)


def exact_field(text: str, field: str, kind: JsonType) -> Any:  # noqa: ANN401 - of any type
    """Return the value of a field of a JSON object that fits this type. Raise ValueError or
    RecursionError.
    """
    return _value(_parser.decode(text).get(field), kind)


def _value(parsed: Any, kind: JsonType) -> Any:  # noqa: ANN401 - parsed JSON
    if parsed is None:
        return None
    if isinstance(kind, ListOf):
        return [_value(item, kind.item) for item in cast("list[Any]", parsed)]
    if isinstance(kind, StructOf):
        return {name: _value(cast("_Object", parsed).get(name), item) for name, item in kind.fields}
    if kind == "VARCHAR":
        return parsed if isinstance(parsed, str) else _text(parsed)
    if isinstance(parsed, _Number):
        return int(parsed.text) if kind == "BIGINT" else float(parsed.text)
    return parsed


def _text(parsed: Any) -> str:  # noqa: ANN401 - parsed JSON
    if isinstance(parsed, _Number):
        return parsed.text
    if isinstance(parsed, _Object):
        members = (f"{json.dumps(k, ensure_ascii=False)}:{_text(v)}" for k, v in parsed.members)
        return f"{{{','.join(members)}}}"
    if isinstance(parsed, list):
        items = cast("Iterable[Any]", parsed)
        return f"[{','.join(map(_text, items))}]"
    return json.dumps(parsed, ensure_ascii=False)
