"""Read the tables that topics declare in their configs.

Pure: topics and their configs come from the manifest.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from penstock.base.table_configs import (
    AUTO,
    ENABLE,
    FORMAT,
    NAME,
    RAW,
    REGISTRY,
    UPSERT,
    TableSettings,
    is_avro,
)
from penstock.lake.manifest.table_status import declares_table
from penstock.lake.table.errors import InvalidSchema, InvalidTable
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.masks import Masking, parse_masks
from penstock.lake.table.values import RAW as RAW_VALUES
from penstock.lake.table.values import ValueFormat
from penstock.lake.table.warehouse import table_name_of
from penstock.protocol.registry.model import StoredSchema
from penstock.protocol.registry.settings import RegistrySettings
from penstock.stream.format.manifest.model import TopicEntry

VALUE_SCHEMA: Final = "penstock.value.schema"
VALUE_SCHEMA_TYPE: Final = "penstock.value.schema.type"
VALUE_SCHEMA_MESSAGE: Final = "penstock.value.schema.message"
VALUE_SCHEMA_VALIDATION: Final = "penstock.value.schema.validation"
_NAMES: Final[tuple[str, ...]] = (ENABLE, NAME, FORMAT)
"""Configs that are included in a status. Their values are readable even if they are invalid."""


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """One topic and its table. If any field changes, the export of the topic restarts."""

    topic: str
    topic_id: str
    settings: TableSettings
    value_schema: tuple[str, str, str] | None = None
    """Schema, type and message of the topic's values, if brokers validate them."""

    has_registered_schema: bool = False
    problem: str = ""
    """Why the configs are invalid."""

    @property
    def table(self) -> str:
        return self.settings.name or table_name_of(self.topic)

    def value_format(self, registry: RegistrySettings | None) -> ValueFormat:
        """Raise InvalidSchema if the schema needs a registry and there is none."""
        schema = self.settings.schema
        if schema == AUTO and self.value_schema is not None:
            text, kind, message = self.value_schema
            if kind == "protobuf":
                stored = StoredSchema("PROTOBUF", text, ())
                return ValueFormat(kind, message=message, newest=stored)
            return ValueFormat(kind, text.encode())
        if schema == RAW or (schema == AUTO and not self.has_registered_schema):
            return RAW_VALUES
        if schema in {AUTO, REGISTRY} or schema.startswith(f"{REGISTRY}:"):
            if registry is None:
                raise InvalidSchema(
                    f"topic {self.topic!r} has the columns of a registered schema: start the runner"
                    " with --schema-registry URL"
                )
            subject = schema.partition(":")[2] or f"{self.topic}-value"
            return ValueFormat.registered(registry, subject)
        return ValueFormat("avro" if is_avro(schema) else "json", schema.encode())

    def sync_options(self, base: SyncOptions, registry: RegistrySettings | None) -> SyncOptions:
        """Return the options of this table. `base`: the options of the runner, which contain the
        hash key. Raise InvalidSchema, or InvalidTable for invalid configs.
        """
        if self.problem:
            raise InvalidTable(f"the configs of topic {self.topic!r} are invalid: {self.problem}")
        return replace(
            base,
            value_format=self.value_format(registry)._replace(unwrap=self.settings.unwrap),
            upsert=self.settings.mode == UPSERT,
            partition_by=self.settings.partition_by,
            masking=Masking(parse_masks(self.settings.masks), base.masking.key),
        )


def declared_tables(topics: Iterable[TopicEntry]) -> dict[str, DeclaredTable]:
    """Return the enabled tables by topic. Internal topics and snapshots do not have tables."""
    found: dict[str, DeclaredTable] = {}
    for entry in topics:
        if declares_table(entry.name, entry.configs, is_internal=entry.is_internal):
            try:
                found[entry.name] = _declared(entry, TableSettings.from_configs(entry.configs))
            except ValueError as error:  # this affects only this topic
                kept = {name: entry.configs[name] for name in _NAMES if name in entry.configs}
                table = _declared(entry, TableSettings.from_configs(kept))
                found[entry.name] = replace(table, problem=str(error))
    return found


def _declared(entry: TopicEntry, settings: TableSettings) -> DeclaredTable:
    configs = entry.configs
    text = configs.get(VALUE_SCHEMA, "")
    schema = (
        text,
        configs.get(VALUE_SCHEMA_TYPE, "json"),
        configs.get(VALUE_SCHEMA_MESSAGE, ""),
    )
    return DeclaredTable(
        entry.name,
        str(entry.topic_id),
        settings,
        schema if text else None,
        configs.get(VALUE_SCHEMA_VALIDATION, "false") == "true",
    )
