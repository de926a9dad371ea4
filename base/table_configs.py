"""The topic configs of exported tables: names, accepted values and their meaning.

Brokers and controllers check the values, and `lake.table` applies them. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from penstock.base.partition_spec import FORMS, PartitionField, parse_partition_by, partition_text

ENABLE: Final = "penstock.table.enable"
NAME: Final = "penstock.table.name"
FORMAT: Final = "penstock.table.format"
SCHEMA: Final = "penstock.table.schema"
PARTITION_BY: Final = "penstock.table.partition.by"
MODE: Final = "penstock.table.mode"
COMMIT_INTERVAL: Final = "penstock.table.commit.interval.ms"
COMPACT: Final = "penstock.table.compact"
SNAPSHOT_RETENTION: Final = "penstock.table.snapshot.retention.ms"
ORPHAN_RETENTION: Final = "penstock.table.orphan.retention.ms"
MASK: Final = "penstock.table.mask"
UNWRAP: Final = "penstock.table.unwrap"

TABLE_FORMATS: Final = ("iceberg", "parquet")
APPEND: Final = "append"
UPSERT: Final = "upsert"
MODES: Final = (APPEND, UPSERT)
COMMIT_INTERVAL_MS: Final = 60_000
COMMIT_INTERVAL_MS_MIN: Final = 1_000
COMMIT_INTERVAL_MS_MAX: Final = 86_400_000
FOREVER: Final = -1
SNAPSHOT_RETENTION_MS: Final = 86_400_000
"""Default of the snapshot retention. It is short, because every batch reads the list of snapshots:
with one snapshot per minute, reading those of a week takes half a second.
"""

SNAPSHOT_RETENTION_MS_MIN: Final = 3_600_000
ORPHAN_RETENTION_MS: Final = 259_200_000
ORPHAN_RETENTION_MS_MIN: Final = 172_800_000
"""Minimum retention of unused files, because a batch may take a day before its files are committed
(`lake.table.model.FILES_S_MAX`).
"""

MASKS: Final = ("redact", "hash", "null", "last4")
MASK_ALLOWED: Final = (
    f"FIELD=MASK, separated by commas, with one of {', '.join(MASKS)}; no field inside another"
)
UNWRAPS: Final = ("none", "debezium")

AUTO: Final = "auto"
RAW: Final = "raw"
REGISTRY: Final = "registry"
SCHEMA_ALLOWED: Final = (
    f"{AUTO}, {RAW}, {REGISTRY}, {REGISTRY}:SUBJECT, or a JSON Schema or Avro record as text"
)

PARTITION_BY_ALLOWED: Final = (
    f"{FORMS}; day for that of the record's timestamp; none; or nothing for the fields of the table"
)
NAME_ALLOWED: Final = (
    "letters, digits and underscores, with an optional namespace, as in sales.orders, or nothing"
    " for the name of the topic"
)

_NAME: Final = re.compile(r"(?:[A-Za-z0-9_]{1,128}\.)?[A-Za-z0-9_]{1,249}")
_SUBJECT: Final = re.compile(r"[^\s]{1,249}")


def is_enabled(configs: Mapping[str, str]) -> bool:
    """Return whether a topic with these configs is exported."""
    return configs.get(ENABLE) == "true"


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The table of one topic, as described by its configs. `name` is empty for the default name."""

    is_enabled: bool
    name: str
    format: str
    schema: str
    partition_by: tuple[PartitionField, ...] | None
    """None if not set, in which case the fields of an existing table are kept."""
    mode: str
    commit_interval_ms: int
    compacts: bool
    snapshot_retention_ms: int | None
    orphan_retention_ms: int | None
    """None to keep unused files forever."""
    masks: tuple[str, ...]
    unwrap: str
    """`debezium` if the values are change events, otherwise empty."""

    @classmethod
    def from_configs(cls, configs: Mapping[str, str]) -> "TableSettings":
        """Return the settings in a topic's configs, with defaults for the rest. Raise ValueError
        for some invalid configs, which a newer controller may accept.
        """
        partitioning = configs.get(PARTITION_BY, "")
        return cls(
            is_enabled(configs),
            configs.get(NAME, ""),
            configs.get(FORMAT, TABLE_FORMATS[0]),
            configs.get(SCHEMA, AUTO),
            parse_partition_by(partitioning) if partitioning else None,
            configs.get(MODE, APPEND),
            max(COMMIT_INTERVAL_MS_MIN, int(configs.get(COMMIT_INTERVAL, COMMIT_INTERVAL_MS))),
            configs.get(COMPACT, "true") == "true",
            _retention_ms(
                configs, SNAPSHOT_RETENTION, SNAPSHOT_RETENTION_MS, SNAPSHOT_RETENTION_MS_MIN
            ),
            _retention_ms(configs, ORPHAN_RETENTION, ORPHAN_RETENTION_MS, ORPHAN_RETENTION_MS_MIN),
            masks_in(configs.get(MASK, "")),
            configs.get(UNWRAP, UNWRAPS[0]).removeprefix(UNWRAPS[0]),
        )


def _retention_ms(
    configs: Mapping[str, str], name: str, default_ms: int, min_ms: int
) -> int | None:
    given_ms = int(configs.get(name, default_ms))
    return None if given_ms < 0 else max(min_ms, given_ms)


def canonical_partition_by(text: str) -> str:
    """Return the text in the form of DescribeConfigs, or an empty text to keep the fields of the
    table. Raise ValueError with the allowed forms.
    """
    return partition_text(parse_partition_by(text)) if text.strip() else ""


def masks_in(text: str) -> tuple[str, ...]:
    """Return masks in the form FIELD=MASK. Raise ValueError with the allowed values."""
    found: dict[str, str] = {}
    for item in text.split(",") if text.strip() else ():
        path, _, kind = (part.strip() for part in item.rpartition("="))
        if not path or kind not in MASKS or path in found:
            raise ValueError(MASK_ALLOWED)
        found[path] = kind
    paths = sorted(f"{path}." for path in found)
    if any(inner.startswith(outer) for outer, inner in pairwise(paths)):
        raise ValueError(MASK_ALLOWED)
    return tuple(f"{path}={kind}" for path, kind in found.items())


def canonical_mask(text: str) -> str:
    """Return the text in the form of DescribeConfigs. Raise ValueError with the allowed values."""
    return ", ".join(masks_in(text))


def canonical_name(text: str) -> str:
    """Return the name of a table. Raise ValueError with the allowed values."""
    if text and not _NAME.fullmatch(text):
        raise ValueError(NAME_ALLOWED)
    return text


def canonical_schema(text: str) -> str:
    """Return a schema. Raise ValueError with the allowed values. Only the runner checks whether its
    types can become columns.
    """
    if text in {AUTO, RAW, REGISTRY}:
        return text
    subject = text.removeprefix(f"{REGISTRY}:")
    if subject != text and _SUBJECT.fullmatch(subject):
        return text
    if not text.startswith("{"):
        raise ValueError(SCHEMA_ALLOWED)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error}); use {SCHEMA_ALLOWED}") from None
    return text


def is_avro(schema: str) -> bool:
    """Return whether a schema that is given as text is an Avro record, not a JSON Schema."""
    return bool(msgspec.json.decode(schema).get("type") == "record")
