"""Write `docs/reference/metadata-records.md`: the records of the metadata log, field by field.

python -m tools.reference.metadata_records > docs/reference/metadata-records.md
The output is deterministic; a test compares it with the file.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Final, NewType, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from msgspec.structs import FieldInfo
from msgspec.structs import fields as fields_of

from penstock.controller.metadata import records

_HEAD: Final = """\
# Metadata records

<!-- Written by `python -m tools.reference.metadata_records`; do not edit. -->

Snapshots and the metadata log ([Storage formats](formats.md), sections 6 and 9) contain these records.
A record is a MessagePack array: its tag, then its fields in this order.
New fields are added only at the end.
Trailing fields with a default may be omitted, and readers ignore unknown elements.
Readers stop at unknown tags: records must not be skipped.
Applied in log order, the records result in the state of the cluster.

Types are those of MessagePack: `text` is str, `bytes` is bin, and a UUID is 16 bytes of bin.
Names that end in *ms* are milliseconds: times since 1970, or durations.
Those that end in *bytes* are bytes, and *record count* is a number of records.
End offsets are exclusive.

## Records
"""
_PARTS_HEAD: Final = "\n## Arrays in records\n\nThey have no tag.\n"
_TABLE_HEAD: Final = "| at | field | type | default | meaning |\n|---|---|---|---|---|\n"
_PLAIN: Final[dict[object, str]] = {
    int: "int",
    float: "float",
    str: "text",
    bytes: "bytes",
    bool: "bool",
    UUID: "UUID",
}


def markdown() -> str:
    kinds = [kind for kind in _structs() if kind in get_args(records.Record)]
    parts = [kind for kind in _structs() if kind not in kinds and not kind.__name__.startswith("_")]
    return (
        _HEAD
        + "".join(_chapter(f"`{kind.__struct_config__.tag}`", kind, first=1) for kind in kinds)
        + _PARTS_HEAD
        + "".join(_chapter(f"`{kind.__name__}`", kind, first=0) for kind in parts)
    )


def _structs() -> Iterator[type[msgspec.Struct]]:
    for found in vars(records).values():
        if (
            inspect.isclass(found)
            and issubclass(found, msgspec.Struct)
            and found.__module__ == records.__name__
        ):
            yield found


def _chapter(title: str, kind: type[msgspec.Struct], *, first: int) -> str:
    doc = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    paragraphs = [" ".join(part.split()) for part in doc.split("\n\n") if part]
    said = "".join(f"{_sentences(part)}\n\n" for part in paragraphs)
    rows = "".join(_row(kind, field, at) for at, field in enumerate(fields_of(kind), first))
    return f"\n### {title}\n\n{said}{_TABLE_HEAD}{rows}"


def _sentences(paragraph: str) -> str:
    """Return the paragraph with one sentence per line."""
    return paragraph.replace(". ", ".\n")


def _row(kind: type[msgspec.Struct], field: FieldInfo, at: int) -> str:
    meaning = _docs().get((kind.__name__, field.name), "")
    if field.default is not msgspec.NODEFAULT:
        default = "nil" if field.default is None else f"`{_json(field.default)}`"
    else:
        default = ""
    hint = get_type_hints(kind)[field.name]
    name = field.name.replace("_", " ")
    return f"| {at} | {name} | {_type(hint)} | {default} | {meaning} |\n"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _type(hint: object) -> str:
    if isinstance(hint, NewType):
        return _type(hint.__supertype__)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if get_origin(hint) is tuple:
        return f"array of {_type(get_args(hint)[0])}"
    if isinstance(hint, UnionType):
        (inner,) = [item for item in get_args(hint) if item is not NoneType]
        return f"{_type(inner)} or nil"
    assert isinstance(hint, type), f"no type of MessagePack is known for {hint}"
    return f"[{hint.__name__}](#{hint.__name__.lower()})"


@cache
def _docs() -> dict[tuple[str, str], str]:
    """Return the docstring of each field, by class and field."""
    found: dict[tuple[str, str], str] = {}
    for kind in ast.parse(inspect.getsource(records)).body:
        if not isinstance(kind, ast.ClassDef):
            continue
        field = ""
        for item in kind.body:
            match item:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    field = name
                case ast.Expr(value=ast.Constant(value=str(doc))) if field:
                    found[kind.name, field] = " ".join(doc.split())
                case _:
                    field = ""
    return found


if __name__ == "__main__":
    sys.stdout.write(markdown())
