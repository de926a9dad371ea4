"""Print the records of a snapshot for `penstock consume`. They are read from the store, because no
broker serves them.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal, cast

from penstock.deploy.cli.lake_errors import one_line_errors
from penstock.deploy.output import counted, remark
from penstock.deploy.records.writer import RecordWriter

_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def print_snapshot(
    topic: str,
    snapshot: str,
    store: str,
    max_messages: int | None,
    writer: RecordWriter,
    *,
    on_error: Literal["raise", "skip"],
    wal_store: str,
) -> None:
    """Print records, one value or JSON object per line, partition by partition. store, wal_store:
    empty for the stores of the local cluster.
    """
    from penstock.deploy.clients.target import existing_store, find_store, find_wal_store

    address = existing_store(store or find_store())
    printed = 0
    with one_line_errors("reader"):
        from penstock.lake.arrow.row_times import for_python
        from penstock.lake.arrow.topic_scan import scan

        records = scan(
            address,
            topic,
            snapshot=snapshot,
            columns=_COLUMNS,
            on_error=on_error,
            wal_store=wal_store or find_wal_store(address),
        )
        rows = (row for batch in records for row in for_python(batch).to_pylist())
        for row in rows:
            if printed == max_messages:
                break
            printed += _write(writer, row)
    writer.flush()
    if records.unreadable:
        remark(str(records.unreadable))
    remark(counted(printed, "record"))


def _write(writer: RecordWriter, row: dict[str, object]) -> bool:
    timestamp = row["timestamp"]
    assert isinstance(timestamp, datetime)
    headers = cast("list[dict[str, object]] | None", row["headers"])
    place = (cast("str", row["topic"]), cast("int", row["partition"]), cast("int", row["offset"]))
    return writer.write(
        place,
        (timestamp - _EPOCH) // timedelta(milliseconds=1),
        _bytes(row["key"]),
        _bytes(row["value"]),
        [(cast("str", header["key"]), _bytes(header["value"])) for header in headers or ()],
    )


def _bytes(value: object) -> bytes | None:
    assert value is None or isinstance(value, bytes)
    return value
