"""Convert values to columns: the formats and their common parts.

A value becomes a row or an error, which does not affect other values. All columns are nullable, so
that a tombstone is a row of nulls, and a new field does not require a rewrite. Schemas are passed
as bytes or looked up by a function.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from penstock.lake.arrow.pyarrow_untyped import Array, DataType, Schema, pa, pc
from penstock.lake.table.errors import InvalidSchema, InvalidTable
from penstock.lake.table.writers import FindSchema, SchemaSource
from penstock.protocol.registry.model import (
    NotRegistered,
    RegistrySettingInvalid,
    StoredSchema,
)
from penstock.protocol.registry.settings import RegistrySettings, given_registry
from penstock.protocol.registry.wire_format import (
    FRAME_BYTES,
    VALUE_HEADER,
    SchemaKey,
    split_frame,
    split_header,
)

FORMATS: Final = ("raw", "json", "avro", "protobuf")


class ValueFormat(NamedTuple):
    """The format of values. It is sent to executors, which create decoders from it.

    `schema` is the content of the schema's file, `message` the Protobuf message. If `framed`,
    values begin with Confluent's magic byte and schema id, and `schemas` contains the schemas by
    id. The columns follow `schema`, or by default the schema with the highest id.

    With `registry`, values are framed, and their schemas are looked up there. The columns follow
    `schema` or, by default, the newest schema of `subject`, which `lake.table.registry` looks up as
    `newest`.
    """

    name: str = "raw"
    schema: bytes = b""
    message: str = ""
    framed: bool = False
    schemas: tuple[tuple[int, bytes], ...] = ()
    registry: RegistrySettings | None = None
    subject: str = ""
    newest: StoredSchema | None = None
    unwrap: str = ""
    """`debezium` if values are change events."""

    @classmethod
    def registered(
        cls,
        registry: RegistrySettings | str | Mapping[str, str],
        subject: str,
        message: str = "",
        *,
        name: str = "",
        schema: bytes = b"",
    ) -> "ValueFormat":
        """Return the format of values whose schemas are in a registry, which is specified by its
        URL or properties. `message`: by default, the first message of the schema. `name` and
        `schema`: a fixed schema for the columns. Raise RegistrySettingInvalid.
        """
        if not isinstance(registry, RegistrySettings):
            found = given_registry(registry)
            if found is None:
                raise RegistrySettingInvalid("give the URL of a schema registry")
            registry = found
        return cls(name, schema, message, framed=True, registry=registry, subject=subject)

    @classmethod
    def of(
        cls,
        name: str,
        given: Sequence[tuple[int | None, bytes]],
        message: str = "",
        *,
        framed: bool = False,
    ) -> "ValueFormat":
        """Return the format for schemas with or without ids. Raise InvalidSchema."""
        plain = [content for number, content in given if number is None]
        by_id = tuple((number, content) for number, content in given if number is not None)
        if len(plain) > 1 or len(dict(by_id)) < len(by_id):
            raise InvalidSchema("specify one schema, or several with different ids: ID=FILE")
        if by_id and not framed:
            raise InvalidSchema("schemas with ids are for framed values: add --framed")
        return cls(name, plain[0] if plain else b"", message, framed, by_id)


RAW: Final = ValueFormat()


class RowDecoder(Protocol):
    """The decoder of one format. `struct` is the type of a row."""

    @property
    def struct(self) -> Any: ...  # noqa: ANN401 - pyarrow is untyped

    def row(self, value: memoryview, schema_id: SchemaKey | None) -> dict[str, Any] | None:
        """Decode one value, written with the schema of that id or GUID. Return None if the value
        removes the row. Raise one of `errors`, or RegistryError if the schema cannot be looked up.
        """
        ...

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """The columns of the valid rows, in order, and the index and error of every other value."""

    columns: dict[str, Array]
    good: Sequence[int] | None
    """The indexes of good rows in the batch; None for all."""

    errors: list[tuple[int, str]]
    removed: Sequence[int] = ()
    """The indexes of values that remove the row of their key."""

    def in_place(self, count: int) -> dict[str, Array]:
        """Return columns of `count` rows, with nulls for the values that were not decoded."""
        if self.good is None:
            return dict(self.columns)
        rows: list[int | None] = [None] * count
        for number, row in enumerate(self.good):
            rows[row] = number
        place = pa.array(rows, pa.int64())
        return {name: column.take(place) for name, column in self.columns.items()}


class ValueDecoder:
    """The decoder of one task, for one thread."""

    def __init__(self, value_format: ValueFormat, find: FindSchema | None = None) -> None:
        """`find` looks up schemas if the format has a registry. Raise InvalidSchema."""
        self._framed = value_format.framed
        self._has_indexes = value_format.name == "protobuf"
        self._decoder = _row_decoder(value_format, find)
        self.schema: Schema = _columns(self._decoder)

    def decode(self, values: Array, headers: Array | None = None) -> Decoded:
        """Decode binary values; nulls are tombstones. The headers of a record may contain the
        schema of a framed value. Cost: nothing for raw values, otherwise a few
        microseconds for each value and field.
        """
        decoder = self._decoder
        if decoder is None:
            return Decoded({"value": values}, None, [])
        in_headers = _schema_headers(headers) if self._framed and headers is not None else {}
        rows: list[dict[str, Any] | None] = []
        good: list[int] = []
        errors: list[tuple[int, str]] = []
        removed: list[int] = []
        for index, value in enumerate(values):
            try:
                row = (
                    self._row(decoder, value.as_buffer(), in_headers.get(index))
                    if value.is_valid
                    else None
                )
            except decoder.errors as error:
                errors.append((index, _reason(error)))
            else:
                rows.append(row)
                good.append(index)
                if row is None and value.is_valid:
                    removed.append(index)
        array = self._converted(decoder, rows, good, errors)
        columns = {
            field.name: column
            for field, column in zip(decoder.struct, array.flatten(), strict=True)
        }
        return Decoded(columns, good if errors else None, sorted(errors), removed)

    def _row(
        self,
        decoder: RowDecoder,
        buffer: Any,  # noqa: ANN401 - pyarrow is untyped
        header: bytes | None,
    ) -> dict[str, Any] | None:
        data = memoryview(buffer)
        if not self._framed:
            return decoder.row(data, None)
        if header is not None:
            key, indexes = split_header(header)
            if self._has_indexes:
                data = memoryview(indexes + bytes(data))
            elif indexes:
                raise ValueError(f"the header {VALUE_HEADER} is too long")
            return decoder.row(data, key)
        schema_id = split_frame(data)
        return decoder.row(data[FRAME_BYTES:], schema_id)

    @staticmethod
    def _converted(
        decoder: RowDecoder, rows: list[Any], good: list[int], errors: list[tuple[int, str]]
    ) -> Array:
        """Convert rows to Arrow. If Arrow cannot represent a value (such as a number beyond 64
        bits), all values are converted separately, and that row becomes an error.
        """
        try:
            return pa.array(rows, decoder.struct)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass
        kept: list[int] = []
        for position, row in enumerate(rows):
            try:
                pa.array([row], decoder.struct)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                errors.append((good[position], _reason(error)))
            else:
                kept.append(position)
        good[:] = [good[position] for position in kept]
        return pa.array([rows[position] for position in kept], decoder.struct)


def _schema_headers(headers: Array) -> dict[int, bytes]:
    """Return the last header with the schema of the value, by the index of its record."""
    flat = headers.flatten()
    found = pc.equal(flat.field("key"), VALUE_HEADER)
    if not pc.any(found).as_py():
        return {}
    records = pc.list_parent_indices(headers).filter(found).to_pylist()
    return dict(
        zip(
            records,
            (value or b"" for value in flat.field("value").filter(found).to_pylist()),
            strict=True,
        )
    )


def _columns(decoder: RowDecoder | None) -> Schema:
    if decoder is None:
        return pa.schema([pa.field("value", pa.binary())])
    fields = list(decoder.struct)
    if not fields:
        raise InvalidSchema(
            "the schema has no fields: a table needs at least one; --format raw stores values"
            " unchanged"
        )
    refuse_same_names(fields)
    return pa.schema(fields)


def refuse_same_names(fields: Iterable[Any]) -> None:
    """Raise InvalidSchema if two fields of a schema or of a struct differ only in case, because
    engines such as Spark and DuckDB ignore case. Fields with the same name are the same field.
    """
    _refuse_same_names(((field.name, field.type) for field in fields), "")


def _refuse_same_names(fields: Iterable[tuple[str, DataType]], path: str) -> None:
    names: dict[str, str] = {}
    inner: dict[str, list[tuple[str, DataType]]] = {}
    for name, kind in fields:
        first = names.setdefault(name.lower(), name)
        if first != name:
            raise InvalidSchema(
                f"fields {path}{first} and {path}{name} differ only in case, which Iceberg, Spark"
                " and DuckDB ignore: rename one of them; tables can also use --format raw"
            )
        inner.setdefault(name, []).extend(_fields_within(kind))
    for name, within in inner.items():
        _refuse_same_names(within, f"{path}{name}.")


def _fields_within(kind: DataType) -> list[tuple[str, DataType]]:
    if pa.types.is_struct(kind):
        return [(field.name, field.type) for field in kind]
    if pa.types.is_map(kind):
        return _fields_within(kind.item_type)
    return _fields_within(kind.value_type) if pa.types.is_list(kind) else []


def _row_decoder(value_format: ValueFormat, find: FindSchema | None) -> RowDecoder | None:
    name, schemas = value_format.name, value_format.schemas
    if name == "raw":
        if value_format.unwrap:
            raise InvalidSchema(
                f"{value_format.unwrap} values need a schema: --format and --schema, or"
                " --schema-registry"
            )
        return None
    if name not in FORMATS:
        raise InvalidTable(f"format {name!r} is unknown: choose one of {', '.join(FORMATS)}")
    columns: SchemaSource | None = value_format.schema or value_format.newest
    if not columns and schemas:
        columns = max(schemas)[1]
    if not columns:
        raise InvalidSchema(f"format {name} requires a schema: specify its file with --schema")
    if value_format.registry is not None:
        assert find is not None, "formats with a registry need a function that looks up schemas"
    elif schemas:
        find = _given(schemas)
    elif value_format.framed and name != "json":
        raise InvalidSchema(
            f"framed values of format {name} require the ids of their schemas: --schema ID=FILE,"
            " for each id in the topic, or --schema-registry URL"
        )
    return _decoder_of(value_format, columns, find)


def _decoder_of(
    value_format: ValueFormat, columns: SchemaSource, find: FindSchema | None
) -> RowDecoder:
    name = value_format.name
    if name == "json":
        from penstock.lake.table.debezium import JsonUnwrapper
        from penstock.lake.table.json_values import JsonDecoder

        return (JsonUnwrapper if value_format.unwrap else JsonDecoder)(columns, find)
    given = [number for number, _ in value_format.schemas]
    decoder: RowDecoder
    if name == "avro":
        from penstock.lake.table.avro_values import AvroDecoder

        decoder = AvroDecoder(columns, find, given)
    else:
        from penstock.lake.table.protobuf_values import ProtobufDecoder

        decoder = ProtobufDecoder(columns, value_format.message, find, given)
    if not value_format.unwrap:
        return decoder
    from penstock.lake.table.debezium import StructUnwrapper

    return StructUnwrapper(decoder)


def _given(schemas: Sequence[tuple[int, bytes]]) -> FindSchema:
    known: dict[SchemaKey, bytes] = dict(schemas)

    def find(key: SchemaKey) -> bytes:
        if key not in known:
            listed = ", ".join(map(str, sorted(number for number, _ in schemas)))
            raise NotRegistered(
                f"the value has schema id {key}, and only these ids have schemas: {listed}"
            )
        return known[key]

    return find


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1_000]
