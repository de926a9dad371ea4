"""Merge the dataclasses of `kio`, one per message and version, into one `Struct` per message.

Each `Field` contains the versions in which it exists and in which it may be null. The order of
fields matches the wire order in every version. A schema that cannot be expressed (a gap in the
versions, a tag that changes) raises an error.
"""

import dataclasses
import datetime
import importlib
import types
import typing
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from penstock.protocol.apis import ApiSpec


class Kind(Enum):
    """Encoding of a single value: (struct code or None, minimum size, Python type)."""

    BOOL = ("?", 1, "bool")
    INT8 = ("b", 1, "int")
    INT16 = ("h", 2, "int")
    UINT16 = ("H", 2, "int")
    INT32 = ("i", 4, "int")
    INT64 = ("q", 8, "int")
    FLOAT64 = ("d", 8, "float")
    STRING = (None, 1, "str")
    BYTES = (None, 1, "bytes")
    RECORDS = (None, 1, "Buffer")
    UUID = (None, 16, "UUID | None")
    STRUCT = (None, 0, "")

    def __init__(self, code: str | None, least_bytes: int, python: str) -> None:
        self.code = code
        self.least_bytes = least_bytes
        self.python = python


_KINDS: Final = {
    "bool": Kind.BOOL,
    "int8": Kind.INT8,
    "int16": Kind.INT16,
    "uint16": Kind.UINT16,
    "error_code": Kind.INT16,
    "int32": Kind.INT32,
    "timedelta_i32": Kind.INT32,
    "int64": Kind.INT64,
    "timedelta_i64": Kind.INT64,
    "datetime_i64": Kind.INT64,
    "float64": Kind.FLOAT64,
    "string": Kind.STRING,
    "bytes": Kind.BYTES,
    "records": Kind.RECORDS,
    "uuid": Kind.UUID,
}
_TIMES: Final = frozenset({"timedelta_i32", "timedelta_i64", "datetime_i64"})
OWN_TAGS_FROM: Final = 10_000
"""The lowest of Penstock's own tags. Kafka numbers tagged fields from 0."""

_ZERO: Final = {
    Kind.BOOL: "False",
    Kind.FLOAT64: "0.0",
    Kind.STRING: '""',
    Kind.BYTES: 'b""',
    Kind.RECORDS: "None",
    Kind.UUID: "None",
    Kind.STRUCT: "None",
}


class UnsupportedSchema(Exception):
    """Raised if kio's schema contains something that the generator cannot express."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field across all versions. `struct` names the element struct of `Kind.STRUCT`."""

    name: str
    kio_name: str
    kind: Kind
    struct: str
    is_array: bool
    tag: int | None
    default: str
    first: int
    last: int
    null_from: int | None


@dataclass(frozen=True, slots=True)
class Struct:
    """One struct across all versions, with fields in wire order."""

    name: str
    first: int
    last: int
    fields: tuple[Field, ...]


def _own(name: str, tag: int, kind: Kind, default: str, *, first: int, last: int) -> Field:
    return Field(
        name,
        name,
        kind,
        "",
        is_array=False,
        tag=OWN_TAGS_FROM + tag,
        default=default,
        first=first,
        last=last,
        null_from=None,
    )


_OWN_FIELDS: Final = {
    ("Produce", "request", "ProduceRequest"): (
        _own("mirror_source", 0, Kind.STRING, '""', first=9, last=13),
    ),
    ("WriteTxnMarkers", "request", "WritableTxnMarker"): (
        _own("serial", 0, Kind.INT64, "-1", first=1, last=2),
    ),
    ("DeleteShareGroupState", "request", "PartitionData"): (
        _own("state_epoch", 0, Kind.INT32, "-1", first=0, last=0),
    ),
    ("ReadShareGroupStateSummary", "request", "PartitionData"): (
        _own("deletions", 0, Kind.BOOL, "False", first=0, last=1),
    ),
    ("ReadShareGroupStateSummary", "response", "PartitionResult"): (
        _own("deleted_epoch", 0, Kind.INT32, "-1", first=0, last=1),
    ),
    ("DescribeLogDirs", "request", "DescribeLogDirsRequest"): (
        _own("details", 0, Kind.BOOL, "False", first=2, last=4),
    ),
    ("DescribeLogDirs", "response", "DescribeLogDirsPartition"): (
        _own("object_count", 0, Kind.INT64, "-1", first=2, last=4),
        _own("wal_bytes", 1, Kind.INT64, "-1", first=2, last=4),
        _own("shared_bytes", 2, Kind.INT64, "-1", first=2, last=4),
    ),
    ("Metadata", "request", "MetadataRequest"): (
        _own("frozen_topics", 0, Kind.BOOL, "False", first=9, last=13),
    ),
    ("Metadata", "response", "MetadataResponseTopic"): (
        _own("frozen_topic", 0, Kind.BYTES, 'b""', first=9, last=13),
    ),
    ("ListOffsets", "request", "ListOffsetsPartition"): (
        _own("fork_offset", 0, Kind.INT64, "-2", first=6, last=11),
    ),
    ("ListOffsets", "response", "ListOffsetsPartitionResponse"): (
        _own("fork_point", 0, Kind.BYTES, 'b""', first=6, last=11),
        _own("error_message", 1, Kind.STRING, '""', first=6, last=11),
    ),
}
"""By API, direction and struct: tagged fields that Kafka's schema lacks. A response contains them
only if the request asks for them with a tag, because not all clients skip unknown tags.
"""


def load_message(api: ApiSpec, direction: str) -> list[Struct]:
    """Return the structs of one message ("request" or "response"), each after the structs it
    contains, so the message itself is last.
    """
    versions: dict[str, dict[int, list[Field]]] = {}  # struct name -> version -> fields
    for version in range(api.served_min, api.max + 1):
        for name, value in _classes(api, direction, version).items():
            if getattr(value, "__flexible__", None) is not api.is_flexible(version):
                raise UnsupportedSchema(
                    f"{api.name} v{version}: the table of APIs is wrong about flexible versions"
                )
            versions.setdefault(name, {})[version] = [
                _field(field, version) for field in dataclasses.fields(value)
            ]
    structs = [
        _renamed(api, direction, _extended(api, direction, _merge(name, found)))
        for name, found in versions.items()
    ]
    return _dependencies_first(structs, root=api.name + direction.capitalize())


def class_name(api: ApiSpec, direction: str, kio_name: str) -> str:
    """Return the name of a struct in the generated module. Response structs that share a name with
    a request struct get a prefix, because both are in one module.
    """
    is_taken = direction == "response" and any(
        kio_name in _classes(api, "request", version)
        for version in range(api.served_min, api.max + 1)
    )
    return f"Response{kio_name}" if is_taken else kio_name


def _extended(api: ApiSpec, direction: str, struct: Struct) -> Struct:
    own = _OWN_FIELDS.get((api.name, direction, struct.name), ())
    return dataclasses.replace(struct, fields=(*struct.fields, *own)) if own else struct


def _renamed(api: ApiSpec, direction: str, struct: Struct) -> Struct:
    fields = [
        dataclasses.replace(field, struct=class_name(api, direction, field.struct))
        for field in struct.fields
    ]
    return dataclasses.replace(
        struct, name=class_name(api, direction, struct.name), fields=tuple(fields)
    )


def _classes(api: ApiSpec, direction: str, version: int) -> dict[str, type[Any]]:
    """Return kio's structs of one version of one message."""
    module = importlib.import_module(f"kio.schema.{api.module}.v{version}.{direction}")
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and dataclasses.is_dataclass(value)
    }


def _field(field: "dataclasses.Field[object]", version: int) -> Field:
    hint, optional = _strip_none(field.type)
    is_array = typing.get_origin(hint) is tuple
    element = typing.get_args(hint)[0] if is_array else hint
    kafka_type = field.metadata.get("kafka_type")
    kind = Kind.STRUCT if kafka_type is None else _KINDS[kafka_type]
    is_time = kafka_type in _TIMES
    nullable = optional and kind is not Kind.UUID and not is_time
    return Field(
        name=f"{field.name}_ms" if is_time else field.name,
        kio_name=field.name,
        kind=kind,
        struct=getattr(element, "__name__", "") if kind is Kind.STRUCT else "",
        is_array=is_array,
        tag=field.metadata.get("tag"),
        default=_default(field, kind, is_array, is_time),
        first=version,
        last=version,
        null_from=version if nullable else None,
    )


def _strip_none(hint: object) -> tuple[object, bool]:
    if typing.get_origin(hint) not in {types.UnionType, typing.Union}:
        return hint, False
    inner = [part for part in typing.get_args(hint) if part is not types.NoneType]
    if len(inner) != 1:
        raise UnsupportedSchema(f"a union of {inner} has no place on the wire")
    return inner[0], True


def _default(field: "dataclasses.Field[object]", kind: Kind, is_array: bool, is_time: bool) -> str:
    value: typing.Any = field.default
    if is_array:
        return "None" if value is None else "[]"
    if value is dataclasses.MISSING or kind is Kind.STRUCT:
        return _ZERO.get(kind, "0")
    if isinstance(value, datetime.timedelta):
        return str(round(value.total_seconds() * 1000))
    if is_time and value is None:
        return "-1"
    if kind is Kind.BOOL:
        return repr(bool(value))
    return str(int(value)) if kind.code else repr(value)


def _merge(name: str, found: dict[int, list[Field]]) -> Struct:
    versions = sorted(found)
    if versions != list(range(versions[0], versions[-1] + 1)):
        raise UnsupportedSchema(f"{name} is missing in some versions between its first and last")
    order: list[str] = []
    merged: dict[str, Field] = {}
    for version in versions:
        at = 0
        for field in found[version]:
            if field.name in merged:
                merged[field.name] = _extend(name, merged[field.name], field)
                at = order.index(field.name) + 1
            else:
                merged[field.name] = field
                order.insert(at, field.name)
                at += 1
    for version in versions:
        here = [field.name for field in found[version]]
        if here != [field for field in order if field in here]:
            raise UnsupportedSchema(f"{name}: the order of fields differs between versions")
    return Struct(name, versions[0], versions[-1], tuple(merged[field] for field in order))


def _extend(name: str, known: Field, field: Field) -> Field:
    """Extend a field by one version."""
    same = dataclasses.replace(field, first=known.first, null_from=known.null_from)
    if dataclasses.replace(same, last=known.last) != known or field.first != known.last + 1:
        raise UnsupportedSchema(
            f"{name}.{field.name} changes its type, tag or default, or has a gap"
        )
    if known.null_from is not None and field.null_from is None:
        raise UnsupportedSchema(f"{name}.{field.name} stops being nullable")
    return dataclasses.replace(
        same, null_from=field.null_from if known.null_from is None else known.null_from
    )


def _dependencies_first(structs: list[Struct], root: str) -> list[Struct]:
    by_name = {struct.name: struct for struct in structs}
    ordered: dict[str, Struct] = {}

    def visit(struct: Struct) -> None:
        for field in struct.fields:
            if field.kind is Kind.STRUCT:
                visit(by_name[field.struct])
        ordered.setdefault(struct.name, struct)

    visit(by_name[root])
    if len(ordered) != len(structs):
        raise UnsupportedSchema(f"not all of {sorted(by_name)} belong to one message")
    return list(ordered.values())
