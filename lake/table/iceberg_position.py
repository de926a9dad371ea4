"""Find the position of the export in the metadata of an Iceberg table. Pure.

Each snapshot that the export commits contains the position in its summary. The table properties
contain it as well, in case the snapshots expire.
"""

import json
from collections.abc import Mapping
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from penstock.lake.table.model import TableState

OFFSETS: Final = "penstock.offsets"
BATCH_ID: Final = "penstock.batch-id"
COMMIT_ID: Final = "penstock.commit-id"
TOPIC: Final = "penstock.topic"
TOPIC_ID: Final = "penstock.topic-id"


def position(metadata: TableMetadata) -> TableState:
    """Return the state in the newest snapshot, from the current one backwards, that contains one.
    Otherwise return the state in the table properties, unless the table was rolled back, which does
    not change properties.
    """
    history = ancestors(metadata, metadata.current_snapshot_id)
    commit_ids = frozenset(_properties(found).get(COMMIT_ID, "") for found in history)
    version = str(metadata.current_snapshot_id)
    for snapshot in history:
        if records_offsets(snapshot):
            return _state(version, _properties(snapshot), commit_ids)
    if _is_rolled_back(metadata, history):
        return TableState(version, commit_ids=commit_ids)
    return _state(version, metadata.properties, commit_ids)


def ancestors(metadata: TableMetadata, snapshot_id: int | None) -> list[Snapshot]:
    """Return a snapshot and those of its ancestors that have not expired."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found: list[Snapshot] = []
    while snapshot_id is not None and (snapshot := known.pop(snapshot_id, None)) is not None:
        found.append(snapshot)
        snapshot_id = snapshot.parent_snapshot_id
    return found


def records_offsets(snapshot: Snapshot) -> bool:
    return OFFSETS in _properties(snapshot)


def _is_rolled_back(metadata: TableMetadata, history: list[Snapshot]) -> bool:
    """Return whether batches were committed after a snapshot in `history` but are not in `history`.
    Branches and tags keep older snapshots whose descendants have expired.
    """
    mine = {snapshot.snapshot_id for snapshot in history}
    first = min((snapshot.sequence_number or 0 for snapshot in history), default=-1)
    return any(
        records_offsets(other) and (other.sequence_number or 0) >= first
        for other in metadata.snapshots
        if other.snapshot_id not in mine
    )


def _properties(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _state(version: str, recorded: Mapping[str, str], commit_ids: frozenset[str]) -> TableState:
    if OFFSETS not in recorded:
        return TableState(version, commit_ids=commit_ids)
    parsed: dict[str, dict[str, int]] = json.loads(recorded[OFFSETS])
    offsets = {int(partition): offset for partition, offset in parsed[recorded[TOPIC]].items()}
    return TableState(
        version,
        recorded[TOPIC],
        recorded[TOPIC_ID],
        int(recorded[BATCH_ID]),
        offsets,
        commit_ids,
    )
