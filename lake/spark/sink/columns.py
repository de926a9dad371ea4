"""Check the columns of a DataFrame like `format("kafka")`, with the same types and error messages.

Invariant: other columns are ignored. The value is required, as is the topic unless the option is
set; all other columns are optional. Source: Spark `KafkaWriter#validateQuery`.
"""

from typing import Final

from pyspark.sql.types import StructType

from penstock.lake.spark.errors import InvalidOption

_TYPES: Final = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("double", "timestamp"),
}


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check the columns; `topic` is the option. Raise InvalidOption."""
    names = schema.fieldNames()
    if topic is None and "topic" not in names:
        raise InvalidOption(
            "topic option required when no 'topic' attribute is present. Use the topic option for"
            " setting a topic."
        )
    if topic == "":
        raise InvalidOption("option 'topic' is empty")
    if "value" not in names:
        raise InvalidOption("Required attribute 'value' not found")
    for name, allowed in _TYPES.items():
        if name not in names or (name == "topic" and topic is not None):
            continue
        if names.count(name) > 1:
            raise InvalidOption(f"there are several columns {name}")
        given = schema[name].dataType.simpleString()
        if given not in allowed:
            raise InvalidOption(
                f"{name} attribute unsupported type {given}. {name} must be a(n)"
                f" {' or '.join(allowed)}"
            )
