"""Run `penstock topics offsets`: show the offsets of topics at a time."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.deploy.cli.completing import complete_topics
from penstock.deploy.cli.incomplete import exit_if_incomplete
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, Output, Partitions
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report_table

if TYPE_CHECKING:
    from penstock.deploy.clients.brokers import Brokers
    from penstock.protocol.client.brokers import Partition

_TIMES: Final[Mapping[str, int]] = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
"""The keywords of `kafka-get-offsets`, with the timestamps of ListOffsets."""


def offsets(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="Only these.",
            autocompletion=complete_topics,
            show_default="all topics",
        ),
    ] = None,
    *,
    time: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help=(
                f"{', '.join(_TIMES)}, milliseconds since 1970, or an ISO time (UTC if it has no"
                " offset)."
            ),
        ),
    ] = "latest",
    partition: Partitions = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the latest offset of each partition, or its offset at a time.

    A time selects the first record at or after it; max-timestamp selects the record with the newest
    timestamp. A partition without such a record has no offset. Topics are not tiered, so
    earliest-local equals earliest, and latest-tiered and earliest-pending-upload have no offset.

    For example: penstock topics offsets orders --time 2026-01-31T12:00:00
    """
    timestamp = _timestamp(time)
    from penstock.deploy.clients.brokers import Brokers

    with Brokers(bootstrap) as brokers:
        wanted = _wanted(brokers, names or (), partition or ())
        found, problems = brokers.known_offsets(wanted, timestamp)
    columns = ("topic", "partition", "offset")
    rows = [(*key, None if found[key] < 0 else found[key]) for key in wanted if key in found]
    views = [dict(zip(columns, row, strict=True)) for row in rows]
    report_table(output, views, "", columns, [(*key, _cell(found.get(key))) for key in wanted])
    exit_if_incomplete(problems, "the offsets of the partitions that it leads are unknown")


def _cell(offset: int | None) -> int | str:
    if offset is None:
        return "unknown"
    return "-" if offset < 0 else offset


def _timestamp(text: str) -> int:
    """Return a timestamp of ListOffsets. Raises UsageError."""
    if text in _TIMES:
        return _TIMES[text]
    if text.isdecimal() or text in map(str, _TIMES.values()):
        return int(text)
    from penstock.deploy.admin.groups.reset import parse_time

    try:
        return parse_time(text)
    except UsageError:
        raise UsageError(
            f"--time {text!r}: one of {', '.join(_TIMES)}, milliseconds since 1970, or an ISO "
            "time such as 2026-01-31T12:00:00"
        ) from None


def _wanted(
    brokers: "Brokers", names: Sequence[str], partitions: Sequence[int]
) -> "list[Partition]":
    """Return the partitions in order. Raises KafkaFailed, UsageError."""
    topics = sorted(set(names)) or [topic.name or "" for topic in brokers.metadata(None).topics]
    there = brokers.partitions(topics) if topics else {}
    for name in names:
        if unknown := sorted(set(partitions) - set(there[name])):
            shown = ",".join(map(str, there[name]))
            raise UsageError(f"--partition {unknown[0]}: {name} has {shown}")
    return [
        (name, index)
        for name in sorted(there)
        for index in there[name]
        if not partitions or index in partitions
    ]
