"""Delete rows of Iceberg tables as engines do with merge-on-read, which pyiceberg cannot write."""

import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

_FIELD_ID = b"PARQUET:field_id"
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {_FIELD_ID: b"2147483546"}),
        pa.field("pos", pa.int64(), False, {_FIELD_ID: b"2147483545"}),
    ]
)
_STATISTICS: dict[str, dict[int, Any]] = {
    name: {}
    for name in (
        "column_sizes",
        "value_counts",
        "null_value_counts",
        "nan_value_counts",
        "lower_bounds",
        "upper_bounds",
    )
}


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddDeletes(_FastAppendFiles):
    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _DeletesWriter(
            metadata.spec(), metadata.schema(), output, self._snapshot_id, self._compression
        ) as writer:
            for file in self._added_data_files:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [writer.to_manifest_file(), *self._existing_manifests()]


def delete_row(table: Table, path: str, position: int) -> None:
    """Delete the row at a position of a data file. The table must not be partitioned."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"file_path": [path], "pos": [position]}, _SCHEMA), sink)
    data = sink.getvalue().to_pybytes()
    name = f"{table.metadata.location}/data/{uuid.uuid4()}-deletes.parquet"
    with table.io.new_output(name).create() as stream:
        stream.write(data)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=name,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=len(data),
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        **_STATISTICS,
    )
    with table.transaction() as transaction:
        update = _AddDeletes(Operation.DELETE, transaction, table.io)
        with update.append_data_file(file):
            pass
