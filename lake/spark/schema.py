"""Spark schemas: the schema of `format("kafka")`, a selection of its columns, and the user's
schema.

Source: Spark `KafkaRecordToRowConverter.kafkaSchema`.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.lake.spark.errors import InvalidOption

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def source_schema(columns: Sequence[str], *, include_headers: bool) -> StructType:
    """Return the schema of these columns, or of all if `columns` is empty. Raise InvalidOption.

    Invariant: only columns and types that the reader produces are accepted, because Spark checks
    neither; all are nullable, as in Kafka's source.
    """
    names = list(columns) or [name for name in _TYPES if name != "headers" or include_headers]
    for name in names:
        _known(name, "option 'columns'")
    if len(set(names)) != len(names):
        raise InvalidOption(f"option 'columns' contains a column twice: {', '.join(names)}")
    return StructType([StructField(name, _TYPES[name]) for name in names])


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema, which may be specified by the user. Raise InvalidOption."""
    if not schema.fields:
        raise InvalidOption(f"the schema has no columns: choose from {', '.join(_TYPES)}")
    for field in schema.fields:
        expected = _known(field.name, "the schema")
        if field.dataType != expected or not field.nullable:
            given = field.dataType.simpleString() + ("" if field.nullable else " not null")
            raise InvalidOption(
                f"column {field.name} of the schema must be {expected.simpleString()} and nullable,"
                f" got {given}"
            )
    return tuple(schema.fieldNames())


def _known(name: str, where: str) -> DataType:
    if name not in _TYPES:
        near = get_close_matches(name.lower(), {known.lower() for known in _TYPES}, n=1)
        hint = (
            f"; did you mean {next(known for known in _TYPES if known.lower() == near[0])}?"
            if near
            else ""
        )
        raise InvalidOption(
            f"{where} contains the unknown column {name!r}: choose from {', '.join(_TYPES)}{hint}"
        )
    return _TYPES[name]
