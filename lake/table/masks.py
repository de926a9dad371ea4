"""Mask columns of rows and dead letters before they are written.

Invariants: the field of each mask exists, or the export stops; otherwise, a schema change could
reveal values. Masks precede partitioning and upserts, so files, their names and statistics contain
only masked values. The hash key has no text representation. There is no I/O.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, NamedTuple

from penstock.base.table_configs import MASKS
from penstock.lake.arrow.pyarrow_untyped import Array, Schema, Table, pa, pc
from penstock.lake.arrow.row_times import with_elements
from penstock.lake.table.errors import InvalidTable
from penstock.lake.table.partition_values import iceberg_numbers
from penstock.lake.table.rows import KEY, NO_KEY, OFFSET, TIMESTAMP, TOPIC

NULL: Final = "null"
REDACT: Final = "redact"
HASH: Final = "hash"
LAST4: Final = "last4"
KEY_BYTES_MIN: Final = 16
REDACTED: Final = "***"
HIDDEN: Final = "****"
"""Replaces the characters hidden by `last4`, regardless of their number."""

_LAST4_CHARACTERS_MIN: Final = 8
"""Shorter values are hidden completely: four characters would be more than half of them."""

_NAMES_SHOWN: Final = 30
_UNMASKED: Final = frozenset({TOPIC, OFFSET, TIMESTAMP})
_types: Any = pa.types


class Mask(NamedTuple):
    """A mask of one field. `path` is the name of a column, or of a field in nested structs as
    `a.b`. Structs in lists, and the elements of a list, may be masked as well.
    """

    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class Masking:
    """The masks of one table. `key` is the key of hashes."""

    masks: tuple[Mask, ...] = ()
    key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        paths = sorted(mask.path for mask in self.masks)
        for path, other in combinations(paths, 2):
            if f"{other}.".startswith(f"{path}."):
                raise InvalidTable(f"masks of {path!r} and {other!r} overlap: keep one of them")
        if any(mask.kind == HASH for mask in self.masks) and len(self.key) < KEY_BYTES_MIN:
            raise InvalidTable(
                f"masks with hash need a key of at least {KEY_BYTES_MIN} bytes; without one, hashes"
                " of known values reveal them"
            )

    def schema(self, schema: Schema, *, partition_column: str, keyed: bool) -> Schema:
        """Return the schema after masking. Raise InvalidTable for a mask of an unknown field, or a
        mask that the type of the field does not support.
        """
        for mask in self.masks:
            column = mask.path.partition(".")[0]
            if column in {*_UNMASKED, partition_column}:
                raise InvalidTable(f"{mask.path} cannot be masked: the export needs it")
            if keyed and column == KEY and mask.kind != HASH:
                raise InvalidTable(f"{KEY}={mask.kind}: upserts need distinct keys; use {KEY}=hash")
        return pa.schema(
            [
                pa.field(item.name, self._type(item.type, masks), item.nullable)
                for item, masks in _by_field(self.masks, schema)
            ]
        )

    def rows(self, rows: Table) -> Table:
        """Return masked rows."""
        if not self.masks:
            return rows
        columns: dict[str, Array] = {}
        for item, masks in _by_field(self.masks, rows.schema):
            column = rows.column(item.name)
            if masks:
                chunks = column.chunks or [pa.array([], column.type)]
                column = self._array(pa.concat_arrays(chunks), masks)
            columns[item.name] = column
        return pa.table(columns)

    def dead_letters(self, letters: Table) -> Table:
        """Return dead letters without values and without error texts, which may quote values. Keys
        are masked as in rows.
        """
        if not self.masks or not letters.num_rows:
            return letters
        errors = [_class_of(text) for text in letters.column("error").to_pylist()]
        columns = {name: letters.column(name) for name in letters.column_names}
        columns["error"] = pa.array(errors, pa.string())
        columns["value"] = pa.nulls(letters.num_rows, letters.schema.field("value").type)
        key_masks = [mask for mask in self.masks if mask.path == KEY]
        if key_masks:
            keys = columns["key"]
            columns["key"] = self._array(
                pa.concat_arrays(keys.chunks), [Mask("", key_masks[0].kind)]
            )
        return pa.table(columns, letters.schema)

    def _type(self, kind: Any, masks: Sequence[Mask]) -> Any:  # noqa: ANN401 - pyarrow is untyped
        if not masks:
            return kind
        if masks[0].path:
            inner, make = _children(kind, masks)
            return make(
                [
                    pa.field(item.name, self._type(item.type, found), item.nullable)
                    for item, found in _by_field(masks, inner)
                ]
            )
        name = masks[0].kind
        if name == NULL:
            return kind
        if _types.is_list(kind):
            return pa.list_(pa.field("element", self._type(kind.value_type, masks)))
        if not _allows(name, kind):
            allowed = [other for other in MASKS if _allows(other, kind)]
            raise InvalidTable(
                f"mask {name} does not support the type {kind}: use {' or '.join(allowed)}"
            )
        return kind if _types.is_binary(kind) else pa.string()

    def _array(self, array: Array, masks: Sequence[Mask]) -> Array:
        if not masks:
            return array
        kind = array.type
        if _types.is_list(kind) and (masks[0].path or masks[0].kind != NULL):
            values = self._array(array.flatten(), masks)
            return with_elements(array, values, pa.list_(pa.field("element", values.type)))
        if masks[0].path:
            children = {
                item.name: self._array(child, found)
                for child, (item, found) in zip(
                    array.flatten(), _by_field(masks, kind), strict=True
                )
            }
            fields = [pa.field(name, child.type) for name, child in children.items()]
            return pa.StructArray.from_arrays(
                list(children.values()), fields=fields, mask=array.is_null()
            )
        return self._leaf(array, masks[0].kind)

    def _leaf(self, array: Array, name: str) -> Array:
        kind = array.type
        if name == NULL:
            return pa.nulls(len(array), kind)
        if name == REDACT:
            redacted = pa.scalar(REDACTED, pa.string()).cast(kind)
            return pc.if_else(array.is_valid(), redacted, pa.scalar(None, kind))
        if name == LAST4:
            return _last4(_texts(array))
        replaced: Callable[[Any], object]
        is_binary = bool(_types.is_binary(kind))
        if is_binary:
            replaced = self._digest
        else:
            replaced = lambda value: self._digest(value.encode()).hex()  # noqa: E731
            array = _texts(array)
        values = [None if value is None else replaced(value) for value in array.to_pylist()]
        return pa.array(values, kind if is_binary else pa.string())

    def _digest(self, value: bytes) -> bytes:
        return hmac.digest(self.key, value, "sha256")


NO_MASKS: Final = Masking()


def parse_masks(texts: Iterable[str]) -> tuple[Mask, ...]:
    """Parse masks in the form FIELD=MASK. Raise InvalidTable."""
    found: list[Mask] = []
    for text in texts:
        path, separator, kind = text.rpartition("=")
        if not separator or not path or kind not in MASKS:
            raise InvalidTable(f"mask {text!r}: use FIELD=MASK, with one of {', '.join(MASKS)}")
        found.append(Mask(path, kind))
    return tuple(found)


def _by_field(
    masks: Sequence[Mask],
    fields: Any,  # noqa: ANN401 - a schema or a struct
) -> Iterator[tuple[Any, list[Mask]]]:
    """Yield each masked field with its masks, whose paths are relative to it. Raise InvalidTable if
    a field is unknown or ambiguous.
    """
    kinds = {item.name: item.type for item in fields}
    of_field: dict[str, list[Mask]] = {}
    for mask in masks:
        # Names may contain dots, so use the longest name that is a prefix of the path.
        found = sorted((name for name in kinds if f"{mask.path}.".startswith(f"{name}.")), key=len)
        if any(_types.is_nested(kinds[name]) for name in found[:-1]):
            raise InvalidTable(
                f"mask of {mask.path!r} is ambiguous: {' and '.join(map(repr, found))} are fields;"
                " rename one of them"
            )
        if not found:
            known = sorted(kinds)
            more = ", ..." if len(known) > _NAMES_SHOWN else ""
            raise InvalidTable(
                f"mask of {mask.path!r}: there is no such field; the fields are"
                f" {', '.join(known[:_NAMES_SHOWN])}{more}"
            )
        of_field.setdefault(found[-1], []).append(Mask(mask.path[len(found[-1]) + 1 :], mask.kind))
    for item in fields:
        yield item, of_field.get(item.name, [])


def _children(
    kind: Any,  # noqa: ANN401 - pyarrow is untyped
    masks: Sequence[Mask],
) -> tuple[Any, Callable[[list[Any]], Any]]:
    """Return the fields of a struct, or of the structs in a list, and a function that creates such
    a type from other fields.
    """
    if _types.is_struct(kind):
        return kind, pa.struct
    if _types.is_list(kind):
        inner, make = _children(kind.value_type, masks)
        return inner, lambda fields: pa.list_(pa.field("element", make(fields)))
    raise InvalidTable(
        f"mask of {masks[0].path!r}: the type {kind} has no such field; mask the whole value"
    )


def _allows(name: str, kind: Any) -> bool:  # noqa: ANN401 - pyarrow is untyped
    is_text = bool(_types.is_string(kind))
    if name == NULL:
        return True
    if name == REDACT:
        return is_text or bool(_types.is_binary(kind))
    if name == LAST4:
        return is_text or bool(_types.is_integer(kind))
    return not (_types.is_nested(kind) or _types.is_fixed_size_binary(kind))


def _texts(array: Array) -> Array:
    """Return values as text. Times become the numbers that Iceberg stores."""
    return iceberg_numbers(array).cast(pa.string())


def _last4(texts: Array) -> Array:
    is_long = pc.greater_equal(pc.utf8_length(texts), _LAST4_CHARACTERS_MIN)
    ends = pc.if_else(is_long, pc.utf8_slice_codeunits(texts, start=-4), "")
    return pc.binary_join_element_wise(HIDDEN, ends, "")


def _class_of(error: str | None) -> str | None:
    """Return an error without its details, which may quote values."""
    if error is None or error == NO_KEY:
        return error
    return f"{error.partition(':')[0]}: the reason is omitted, because the table masks values"
