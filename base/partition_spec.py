"""Parse the partitioning of a table, such as `day(_timestamp), bucket(16, user.id)`. Pure.

The command line, topic configs and `lake.table` share it. The transforms are those of Iceberg.
Whether a column exists and is suitable for its transform depends on the schema of the table.
Source: Iceberg spec, "Partition Transforms".
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

IDENTITY: Final = "identity"
TIME_TRANSFORMS: Final = ("year", "month", "day", "hour")
WIDTH_TRANSFORMS: Final = ("bucket", "truncate")
TRANSFORMS: Final = (*TIME_TRANSFORMS, *WIDTH_TRANSFORMS, IDENTITY)
FIELDS_MAX: Final = 10
WIDTH_MAX: Final = 2**31 - 1
NONE: Final = "none"

FORMS: Final = (
    "year(FIELD), month(FIELD), day(FIELD), hour(FIELD), bucket(N, FIELD), truncate(W, FIELD),"
    " identity(FIELD) or FIELD, separated by commas"
)
_TOKEN: Final = re.compile(r'\s*(?:(?P<mark>[(),])|"(?P<quoted>(?:[^"]|"")*)"|(?P<word>[^(),"]+))')


class InvalidPartitioning(ValueError):
    """The text is not a valid partitioning. The message contains the allowed forms."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One partition field. `column` may be a nested field, as `a.b`. `width` is the number of
    buckets or the length to which values are truncated.
    """

    transform: str
    column: str
    width: int = 0

    @property
    def name(self) -> str:
        """The name of the field in Iceberg."""
        if self.transform == IDENTITY:
            return self.column
        if self.transform == "bucket":
            return f"{self.column}_bucket_{self.width}"
        if self.transform == "truncate":
            return f"{self.column}_trunc_{self.width}"
        return f"{self.column}_{self.transform}"

    def __str__(self) -> str:
        column = self.column
        if column != column.strip() or not column or set(column) & set('(),"'):
            column = '"' + column.replace('"', '""') + '"'
        if self.transform == IDENTITY and column not in {NONE, "day"}:
            return column
        width = f"{self.width}, " if self.width else ""
        return f"{self.transform}({width}{column})"


DAY: Final = PartitionField("day", "_timestamp")


def parse_partition_by(spec: str) -> tuple[PartitionField, ...]:
    """Return the partition fields, or no fields for `none` or an empty text. `day` without a column
    means the day of the record's timestamp. A name with parentheses, commas or quotes must be
    enclosed in double quotes. Raise InvalidPartitioning.
    """
    given = spec.strip()
    if given in {"", NONE}:
        return ()
    if given == "day":
        return (DAY,)
    tokens = list(_tokens(given))
    fields: list[PartitionField] = []
    position = 0
    while True:
        field, position = _field(given, tokens, position)
        fields.append(field)
        if position == len(tokens):
            break
        if tokens[position] != (",", True):
            raise _invalid(given, f"a comma is missing before {tokens[position][0]!r}")
        position += 1
    check_combination(fields)
    return tuple(fields)


def partition_text(fields: Sequence[PartitionField]) -> str:
    """Return the fields as text that `parse_partition_by` accepts."""
    return ", ".join(map(str, fields)) or NONE


def check_combination(fields: Sequence[PartitionField]) -> None:
    """Raise InvalidPartitioning for fields that Iceberg does not allow together."""
    if len(fields) > FIELDS_MAX:
        raise InvalidPartitioning(
            f"the partitioning has {len(fields)} fields, more than {FIELDS_MAX}: every combination"
            " of values is a file"
        )
    names: dict[str, PartitionField] = {}
    times: dict[str, PartitionField] = {}
    for field in fields:
        if field.name.lower() in names:
            raise InvalidPartitioning(f"the partitioning has {field} twice: name it once")
        names[field.name.lower()] = field
        if field.transform in TIME_TRANSFORMS:
            other = times.setdefault(field.column, field)
            if other is not field:
                raise InvalidPartitioning(
                    f"partitioning {other}, {field}: use one transform of time for a field;"
                    " engines derive the longer period from the shorter one"
                )


def _field(
    given: str, tokens: Sequence[tuple[str, bool]], position: int
) -> tuple[PartitionField, int]:
    """Parse one field, and return the position after it. A token is a pair: its text, and whether
    it is a punctuation mark.
    """

    def word(what: str) -> str:
        nonlocal position
        if position == len(tokens) or tokens[position][1]:
            found = tokens[position][0] if position < len(tokens) else "the end"
            raise _invalid(given, f"{what} is missing before {found!r}")
        position += 1
        return tokens[position - 1][0]

    def mark(expected: str) -> None:
        nonlocal position
        if position == len(tokens) or tokens[position] != (expected, True):
            raise _invalid(given, f"{expected!r} is missing")
        position += 1

    name = word("a field")
    if position == len(tokens) or tokens[position] != ("(", True):
        return PartitionField(IDENTITY, name), position
    position += 1
    transform = name.lower()
    if transform not in TRANSFORMS:
        raise _invalid(given, f"transform {name!r} is unknown")
    width = 0
    if transform in WIDTH_TRANSFORMS:
        text = word("a number")
        if not re.fullmatch("[0-9]{1,10}", text) or not 1 <= int(text) <= WIDTH_MAX:
            raise _invalid(given, f"{transform} needs a number from 1 to {WIDTH_MAX}, not {text!r}")
        width = int(text)
        mark(",")
    column = word("a field")
    mark(")")
    return PartitionField(transform, column, width), position


def _tokens(given: str) -> Iterator[tuple[str, bool]]:
    position = 0
    while position < len(given):
        found = _TOKEN.match(given, position)
        if found is None:
            raise _invalid(given, "a quote is not closed")
        position = found.end()
        if found["mark"]:
            yield found["mark"], True
        elif found["quoted"] is not None:
            if not found["quoted"]:
                raise _invalid(given, "a name is empty")
            yield found["quoted"].replace('""', '"'), False
        elif word := found["word"].strip():
            yield word, False


def _invalid(given: str, reason: str) -> InvalidPartitioning:
    return InvalidPartitioning(f"partitioning {given!r}: {reason}; use {FORMS}")
