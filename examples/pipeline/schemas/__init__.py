"""The JSON Schemas of the topics, as Spark's types. Producers and `penstock topics` use the same
files.
"""

import json
from importlib.resources import files
from typing import NamedTuple

from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TYPES: dict[tuple[str, str], DataType] = {
    ("string", ""): StringType(),
    ("string", "date-time"): TimestampType(),
    ("integer", ""): LongType(),
    ("boolean", ""): BooleanType(),
}


class Schema(NamedTuple):
    fields: StructType
    required: tuple[str, ...]


def load(name: str) -> Schema:
    """Load `<name>.json`."""
    schema = json.loads((files(__package__) / f"{name}.json").read_text())
    return Schema(
        StructType(
            [
                StructField(field, _TYPES[_not_null(item["type"]), item.get("format", "")])
                for field, item in schema["properties"].items()
            ]
        ),
        tuple(schema["required"]),
    )


def _not_null(kind: str | list[str]) -> str:
    """Return the type in `["integer", "null"]`, or the given one: all columns are nullable."""
    return kind if isinstance(kind, str) else next(name for name in kind if name != "null")
