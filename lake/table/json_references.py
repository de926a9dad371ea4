"""Resolve `$ref` in a JSON Schema: to parts of the document, to parts with an `$id` or an
`$anchor`, and to other documents, identified by their name in a registry or by their `$id`. Nothing
is fetched.

Pure. Source: JSON Schema 2020-12 "Core", section 8; `id` is supported as in draft 4.
"""

from collections.abc import Iterator
from typing import Any, Final, cast
from urllib.parse import unquote, urldefrag, urljoin

from penstock.lake.table.errors import InvalidSchema

REFERENCES_MAX: Final = 32
_IDS: Final = ("$id", "id")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
"""Keywords that contain values, not schemas."""

_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
"""Keywords that contain schemas by name."""

_Json = dict[str, Any]


class JsonSchemas:
    """The schemas of a document and of the documents that it refers to. Each schema has a base URI:
    the innermost `$id` around it, or otherwise the URI of its document, which is empty for `root`.
    """

    def __init__(self, root: _Json, documents: dict[str, _Json]) -> None:
        self._by_uri: dict[str, _Json] = {}
        self._documents: dict[str, _Json] = {}
        self._names = {name: _base_of(document, name) for name, document in documents.items()}
        for name, document in {**documents, "": root}.items():
            self._by_uri[name] = self._documents[name] = document
            for uri, schema in _identified(document, name):
                self._by_uri[uri], self._documents[uri] = schema, document

    def target(self, schema: _Json, base: str, path: str) -> tuple[_Json, str]:
        """Follow the references of a schema with a base URI. Return the last schema, and its base.
        Raise InvalidSchema.
        """
        base = _base_of(schema, base)
        for _ in range(REFERENCES_MAX):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema, base
            schema, base = self._resolved(reference, base, path)
        raise InvalidSchema(f"{path}: references refer to each other")

    def _resolved(self, reference: str, base: str, path: str) -> tuple[_Json, str]:
        name, _, fragment = reference.partition("#")
        found: _Json | None
        if name in self._names:
            found, base = self._by_uri[name], self._names[name]
        else:
            base = _joined(base, name) if name else base
            found = self._by_uri.get(base)
        if found is None:
            raise InvalidSchema(f"{path}: the schema refers to {name!r}, which is missing")
        if fragment and not fragment.startswith("/"):
            anchored = self._by_uri.get(f"{base}#{fragment}")
            if anchored is None:
                raise InvalidSchema(f"{path}: the schema has no {reference!r}")
            return anchored, _base_of(anchored, base)
        part = _part(found, fragment, base)
        if part is None:  # parts may have an `$id`, but pointers start at the root
            part = _part(self._documents[base], fragment, base)
        if part is None:
            raise InvalidSchema(f"{path}: the schema has no {reference!r}")
        return part


def _part(schema: _Json, pointer: str, base: str) -> tuple[_Json, str] | None:
    """Return the part at a JSON pointer, and its base."""
    part: Any = schema
    for step in filter(None, pointer.split("/")):
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and key.isdecimal():
            items: list[Any] = cast("Any", part)
            part = items[int(key)] if int(key) < len(items) else None
        else:
            part = cast("_Json", part).get(key) if isinstance(part, dict) else None
        if isinstance(part, dict):
            base = _base_of(cast("_Json", part), base)
    return (cast("_Json", part), base) if isinstance(part, dict) else None


def _base_of(schema: _Json, base: str) -> str:
    for name in _IDS:
        given = schema.get(name)
        if isinstance(given, str) and not given.startswith("#"):
            return urldefrag(_joined(base, given)).url
    return base


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:  # not a URI
        return reference


def _identified(document: _Json, base: str) -> Iterator[tuple[str, _Json]]:
    """Yield the schemas with an `$id` or an anchor, and their URIs."""
    waiting: list[tuple[Any, str]] = [(document, base)]
    while waiting:
        part, base = waiting.pop()
        if isinstance(part, list):
            items: list[Any] = cast("Any", part)
            waiting += ((item, base) for item in items)
        if not isinstance(part, dict):
            continue
        schema = cast("_Json", part)
        inner = _base_of(schema, base)
        if inner != base:
            yield inner, schema
        for name in (*_ANCHORS, *_IDS):
            anchor = schema.get(name)
            if isinstance(anchor, str) and (name in _ANCHORS or anchor.startswith("#")):
                yield f"{inner}#{anchor.removeprefix('#')}", schema
        for name, item in schema.items():
            if name in _MAPS and isinstance(item, dict):
                waiting += ((value, inner) for value in cast("_Json", item).values())
            elif name not in _VALUES:
                waiting.append((item, inner))
