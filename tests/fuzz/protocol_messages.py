"""Build Kafka protocol messages with a value in every field."""

import importlib
from collections.abc import Callable, Container
from typing import Any

from penstock.protocol.apis import ApiSpec
from tools.protocol.kio_schema import OWN_TAGS_FROM, Field, Kind, Struct, load_message

ValueOf = Callable[[Struct, Field], Any]
"""A function that returns the value of a field that contains no struct."""


def built_message(
    api: ApiSpec,
    direction: str,
    version: int,
    value_of: ValueOf,
    left_out: Container[str] = frozenset(),
) -> Any:
    """Return a message with each field of this version, and one element in each array.

    direction: "request" or "response". left_out: names of fields that keep their defaults.
    """
    structs = {struct.name: struct for struct in load_message(api, direction)}
    module = importlib.import_module(f"penstock.protocol.gen.{api.module}")

    def build(struct: Struct) -> Any:
        present = [
            each
            for each in struct.fields
            if each.first <= version <= each.last
            and (each.tag or 0) < OWN_TAGS_FROM
            and each.name not in left_out
        ]
        return getattr(module, struct.name)(**{each.name: value(struct, each) for each in present})

    def value(struct: Struct, item: Field) -> Any:
        is_struct = item.kind is Kind.STRUCT
        one = build(structs[item.struct]) if is_struct else value_of(struct, item)
        return [one] if item.is_array else one

    return build(structs[api.name + direction.capitalize()])
