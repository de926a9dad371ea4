"""Print the records of a snapshot for `penstock consume`. They are read from the store, because no
broker serves them.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, cast

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.deploy.output import counted, remark
from penstock.deploy.records.writer import RecordWriter

if TYPE_CHECKING:
    from penstock.lake.arrow.topic_scan import Scan

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
    from penstock.deploy.clients.slow_servers import report_slow_servers
    from penstock.deploy.clients.target import existing_store, find_store, find_wal_store

    address = existing_store(store or find_store())
    report_slow_servers()
    try:
        from penstock.base.errors import StreamError
        from penstock.objectstore.errors import ObjectStoreError
    except ImportError as error:
        raise _missing(error) from None
    printed = 0
    try:
        from penstock.lake.arrow.topic_scan import scan

        records = scan(
            address,
            topic,
            snapshot=snapshot,
            columns=_COLUMNS,
            on_error=on_error,
            wal_store=wal_store or find_wal_store(address),
        )
        for row in _rows(records):
            if printed == max_messages:
                break
            printed += _write(writer, row)
    except ImportError as error:
        raise _missing(error) from None
    except (StreamError, ObjectStoreError, ValueError) as error:
        raise ExpectedError(str(error)) from None
    writer.flush()
    if records.unreadable:
        remark(str(records.unreadable))
    remark(counted(printed, "record"))


def _rows(records: "Scan") -> Iterator[dict[str, object]]:
    from penstock.lake.arrow.row_times import for_python

    for batch in records:
        yield from for_python(batch).to_pylist()


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


def _missing(error: ImportError) -> ExpectedError:
    return ExpectedError(f"the package {error.name} is missing: {install_hint('reader')}")
