"""Generate a JSON schema of the definition, for the `config` of a chart's values: one object per
role with the settings as keys.

Invariant: the schema accepts the same settings as a process, except for constraints between values,
which a schema cannot express.
"""

import re
from collections.abc import Collection
from typing import Any, Final

from penstock.base.settings import Field, Kind, text_of
from penstock.deploy.node.config.definition import ROLES, Role, settings_of
from penstock.deploy.node.config.docs import first_sentence

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
"""The draft that Helm supports."""
_DURATION: Final = r"^-?[0-9][0-9_]*(\.[0-9]+)?\s*(ms|s|min|h|d)?$"
_SIZE: Final = r"^-?[0-9][0-9_]*(\.[0-9]+)?\s*(B|kB|MB|GB|KiB|MiB|GiB|TiB)?$"


def schema() -> dict[str, Any]:
    """Return the whole schema; a chart uses its `properties.config`."""
    roles = {role: role_schema(role) for role in ROLES}
    config = {"type": "object", "additionalProperties": False, "properties": roles}
    return {
        "$schema": DRAFT,
        "title": "Penstock configuration",
        "type": "object",
        "properties": {"config": config},
    }


def role_schema(role: Role, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of one role. All are optional, because a chart sets the store and the
    controllers. without: names of settings to omit, also for single listeners.
    """
    fields = [field for field in settings_of(role).values() if field.name not in without]
    found: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {field.name: _property(field) for field in fields},
    }
    of_listeners = {
        _pattern(field): _described(field) for field in fields if field.setting.per_listener
    }
    return found | ({"patternProperties": of_listeners} if of_listeners else {})


def _pattern(field: Field) -> str:
    """Return the name pattern of a setting that individual listeners can override."""
    return rf"^listener\.name\.[a-z][a-z0-9_]*\.{re.escape(field.name)}$"


def _property(field: Field) -> dict[str, Any]:
    found = _described(field)
    if not field.required and field.default is not None:
        default = field.default
        found["default"] = (
            default if isinstance(default, bool | int) else text_of(field.setting, default)
        )
    return found


def _described(field: Field) -> dict[str, Any]:
    live = " Can change while brokers run." if field.setting.is_dynamic else ""
    return {"description": first_sentence(field.doc) + live} | _type(field)


def _type(field: Field) -> dict[str, Any]:
    setting = field.setting
    limits = {"minimum": setting.low, "maximum": setting.high}
    number: dict[str, Any] = {"type": "integer"} | {
        name: limit for name, limit in limits.items() if limit is not None
    }
    match setting.kind:
        case Kind.BOOL:
            return {"type": "boolean"}
        case Kind.ENUM:
            return {"enum": list(setting.choices)}
        case Kind.INT:
            return (
                {"anyOf": [number, {"type": "string", "pattern": r"\{[a-z]+(\+[0-9]+)?\}"}]}
                if setting.templates
                else number
            )
        case Kind.DURATION:
            return {"anyOf": [number, {"type": "string", "pattern": _DURATION}]}
        case Kind.BYTES:
            return {"anyOf": [number, {"type": "string", "pattern": _SIZE}]}
        case Kind.LIST | Kind.LISTENERS:
            return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        case _:
            return {"type": "string"}
