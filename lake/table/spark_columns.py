"""Decode Spark columns of values whose schemas are in a registry.

Invariant: executors look up schemas by id, with the settings of the driver or of their own
environment. A value that cannot be decoded results in an error or in a row that contains the
reason.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyspark.sql.functions
import pyspark.sql.pandas.types
from pyspark.sql import Column

from penstock.lake.arrow.pyarrow_untyped import Array, Schema, pa
from penstock.lake.spark.errors import InvalidOption
from penstock.lake.table.errors import ValueNotDecoded
from penstock.lake.table.registry import decoder_of, with_newest
from penstock.lake.table.values import ValueDecoder, ValueFormat
from penstock.protocol.registry.settings import (
    RegistrySettings,
    given_registry,
    settings_of_environment,
)

ERROR: Final = "_error"
MODES: Final = ("FAILFAST", "PERMISSIVE")
_functions: Final[Any] = pyspark.sql.functions
_types: Final[Any] = pyspark.sql.pandas.types


def decoded_column(
    data: Any,  # noqa: ANN401 - Column or its name
    subject: str,
    schema_registry: str | Mapping[str, str],
    *,
    name: str,
    message: str,
    mode: str,
    headers: Any = None,  # noqa: ANN401 - Column or its name
) -> Column:
    """Return a column of structs. `headers`: a column of headers, which may contain the schemas of
    values. Raise InvalidOption, InvalidSchema, RegistryError or RegistrySettingInvalid.
    """
    is_permissive = mode.upper() == "PERMISSIVE"
    if mode.upper() not in MODES:
        raise InvalidOption(f"mode must be {' or '.join(MODES)}, got {mode!r}")
    settings = given_registry(schema_registry) or settings_of_environment()
    if settings is None:
        raise InvalidOption(
            "give the URL or the properties of a schema registry, or set PENSTOCK_SCHEMA_REGISTRY"
        )
    value_format = with_newest(ValueFormat.registered(settings, subject, message, name=name))
    schema = _with_error(decoder_of(value_format).schema, is_permissive=is_permissive)
    has_headers = headers is not None
    decode = _decoding(
        value_format, schema, prefers_own=not schema_registry, has_headers=has_headers
    )
    kind = _types.from_arrow_schema(schema)
    given = (data,) if headers is None else (data, headers)
    # Spark derives the kind of function from its annotations; pyarrow's types are untyped here.
    arrays = Iterator[pa.Array]
    pairs = Iterator[tuple[pa.Array, pa.Array]]
    decode.__annotations__ = {"batches": pairs if has_headers else arrays, "return": arrays}
    column: Column = _functions.arrow_udf(decode, kind)(*given)
    return column


def _decoding(
    value_format: ValueFormat, schema: Schema, *, prefers_own: bool, has_headers: bool
) -> Callable[[Iterator[Any]], Iterator[Array]]:
    """Return the function that executors run on batches of values or, with `has_headers`, of values
    and headers. `prefers_own`: use the registry in the environment of the executor, if there is
    one.
    """

    def decode(batches: Iterator[Any]) -> Iterator[Array]:
        own: RegistrySettings | None = settings_of_environment() if prefers_own else None
        decoder = decoder_of(value_format._replace(registry=own or value_format.registry))
        for batch in batches:
            if has_headers:
                values, headers = batch
                yield _structs(decoder, schema, values, headers)
            else:
                yield _structs(decoder, schema, batch, None)

    return decode


def _with_error(columns: Schema, *, is_permissive: bool) -> Schema:
    if not is_permissive:
        return columns
    if ERROR in (field.name.lower() for field in columns):
        raise InvalidOption(f"mode PERMISSIVE adds the field {ERROR}, which the schema contains")
    return pa.schema([*columns, pa.field(ERROR, pa.string())])


def _structs(decoder: ValueDecoder, schema: Schema, values: Array, headers: Array | None) -> Array:
    found = decoder.decode(values, headers)
    if found.errors and ERROR not in schema.names:
        raise ValueNotDecoded(
            f"{len(found.errors)} of {len(values)} values cannot be decoded; the first reason:"
            f" {found.errors[0][1]}; with mode='PERMISSIVE' it becomes the field {ERROR}"
        )
    arrays = found.in_place(len(values))
    if ERROR in schema.names:
        reasons = dict(found.errors)
        arrays[ERROR] = pa.array([reasons.get(row) for row in range(len(values))], pa.string())
    fields = list(schema)
    return pa.StructArray.from_arrays(
        [arrays[field.name] for field in fields], fields=fields, mask=values.is_null()
    )
