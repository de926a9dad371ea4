"""Kafka requests from plain values."""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from penstock.protocol.apis import ApiSpec


def make_request(api: ApiSpec, /, **fields: Any) -> Any:
    """Return the API's request. Structs, also in lists, are given as mappings of their fields."""
    return _struct(getattr(api.codec, f"{api.name}Request"), fields)


def _struct(kind: type[Struct], fields: Mapping[str, Any]) -> Struct:
    inner = _inner_structs(kind)
    return kind(
        **{
            name: _with_structs(inner[name], value) if name in inner else value
            for name, value in fields.items()
        }
    )


def _with_structs(kind: type[Struct], value: Any) -> Any:
    if isinstance(value, Mapping):
        return _struct(kind, value)
    if isinstance(value, list):
        return [_with_structs(kind, element) for element in value]
    return value


@cache
def _inner_structs(kind: type[Struct]) -> dict[str, type[Struct]]:
    """Return the types of the fields that contain a struct or a list of structs."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        for part in (hint, *get_args(hint)):
            for candidate in (part, *get_args(part)):
                if isinstance(candidate, type) and issubclass(candidate, Struct):
                    found[name] = candidate
    return found
