"""Schema rules for the keys and values of a topic, from its configs. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.controller.metadata.topic_configs import (
    KEY_SCHEMA,
    TOPIC_CONFIGS,
    VALUE_SCHEMA,
    SchemaConfigs,
)

TOPIC_STRATEGY: Final = "TopicNameStrategy"
RECORD_STRATEGY: Final = "RecordNameStrategy"
_NAMES: Final = KEY_SCHEMA.names | VALUE_SCHEMA.names


class FieldRule(Struct, frozen=True):
    """The rule for keys or values.

    type, schema, message: as in the configs. strategy: the subject strategy for registered schemas.
    If it is empty, the schema is `schema`, and values have no id prefix.
    """

    type: str = "json"
    schema: str = ""
    message: str = ""
    strategy: str = ""


class SchemaRules(Struct, frozen=True):
    """The rules for keys and values. None means that anything is valid. Null keys and values are
    always valid.
    """

    key: FieldRule | None = None
    value: FieldRule | None = None


def schema_rules(configs: Mapping[str, str]) -> SchemaRules | None:
    """Return the rules of a topic with these configs, or None."""
    rules = SchemaRules(_field_rule(configs, KEY_SCHEMA), _field_rule(configs, VALUE_SCHEMA))
    return None if rules.key is rules.value is None else rules


def is_schema_config(name: str) -> bool:
    return name in _NAMES


def _field_rule(configs: Mapping[str, str], names: SchemaConfigs) -> FieldRule | None:
    def value(name: str) -> str:
        return configs.get(name, TOPIC_CONFIGS[name].default)

    if value(names.is_registered) == "true":
        return FieldRule(strategy=value(names.strategy))
    if not value(names.schema):
        return None
    return FieldRule(value(names.type), value(names.schema), value(names.message))


def subject_of(topic: str, part: str, strategy: str, record_name: str) -> str:
    """Return the subject under which the schema must be registered. part: `key` or `value`."""
    if strategy == TOPIC_STRATEGY:
        return f"{topic}-{part}"
    return record_name if strategy == RECORD_STRATEGY else f"{topic}-{record_name}"
