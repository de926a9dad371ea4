"""Run `penstock consume`: print records."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.deploy.cli.completing import complete_groups, complete_snapshots
from penstock.deploy.cli.options import (
    BOOTSTRAP,
    Bootstrap,
    OnError,
    Partitions,
    Rate,
    TopicName,
    WalStore,
)
from penstock.deploy.cli.record_options import RecordOptions
from penstock.deploy.errors import UsageError
from penstock.deploy.output import counted, end_line_of_interrupt, remark

if TYPE_CHECKING:
    from penstock.deploy.records.reading import Begin, Limits
    from penstock.deploy.records.writer import RecordWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """Options that select records."""

    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", help="Start with the oldest record instead of the next one."
        ),
    ] = False
    offset: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|N|-N",
            help="Start at this offset of each partition; -N: N before the end.",
        ),
    ] = ""
    from_time: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help=(
                "Start with the first record at or after this ISO time (UTC if it has no offset)."
            ),
        ),
    ] = ""
    partitions: Partitions = None
    group: Annotated[
        str | None,
        typer.Option(
            help="Join this consumer group and commit offsets.",
            show_default=False,
            autocompletion=complete_groups,
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", help="Only records with this key.", show_default=False),
    ] = None
    isolation: Annotated[
        Literal["read_committed", "read_uncommitted"],
        typer.Option(help="read_uncommitted also prints records of open and aborted transactions."),
    ] = "read_committed"

    def begin(self) -> "Begin":
        """Return the start position. Raises UsageError."""
        from penstock.deploy.admin.groups.reset import parse_time
        from penstock.deploy.records.reading import Begin, parse_begin

        if sum((self.from_beginning, bool(self.offset), bool(self.from_time))) > 1:
            raise UsageError("specify only one of --from-beginning, --offset and --from-time")
        if self.from_time:
            return Begin(time_ms=parse_time(self.from_time))
        return parse_begin("earliest" if self.from_beginning else self.offset or "latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Options for when to stop and how fast to read."""

    max_messages: Annotated[
        int | None, typer.Option(help="Stop after this many records.", show_default=False, min=1)
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Stop after this many seconds without a record.", show_default=False, min=0.0
        ),
    ] = None
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the current end of the log.")
    ] = False
    rate: Rate = 0.0
    on_error: OnError = "raise"

    def limits(self) -> "Limits":
        from penstock.deploy.records.reading import Limits

        return Limits(
            self.max_messages,
            self.timeout,
            self.until_end,
            self.rate,
            self.on_error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Options for the output of records."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print each record as one JSON object per line.")
    ] = False
    output: Annotated[
        Literal["text", "json"],
        typer.Option("--output", "-o", help="json: the same as --json."),
    ] = "text"
    template: Annotated[
        str,
        typer.Option(
            "--template",
            "-f",
            help=(
                "Print records with a template, as in kcat: %s value, %k key, %t topic, %p "
                "partition, %o offset, %T time in ms, %h headers, %S and %K lengths."
            ),
        ),
    ] = ""
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help=(
                "Do not escape control characters on a terminal. Files and pipes always "
                "receive the raw bytes."
            ),
        ),
    ] = False

    def writer(self, records: RecordOptions, topic: str, key: str | None) -> "RecordWriter":
        """Return the function that prints records. key: print only records with this key. Raises
        UsageError.
        """
        from penstock.deploy.records.writer import RecordWriter

        as_json = self.as_json or self.output == "json"
        if as_json and self.template:
            raise UsageError("--json and --template are mutually exclusive")
        keys, values = records.codecs(topic)
        return RecordWriter(
            keys,
            values,
            template=self.template,
            as_json=as_json,
            raw=self.raw,
            key=None if key is None else keys.encode(key),
        )


def consume(
    topic: TopicName,
    *,
    where: _Where,
    ends: _Ends,
    records: RecordOptions,
    form: _Form,
    snapshot: Annotated[
        str | None,
        typer.Option(
            help="Print the topic as it is in this snapshot, read from the store.",
            show_default=False,
            autocompletion=complete_snapshots,
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_STORE",
            help="For --snapshot: store of the brokers; default: that of `penstock dev`.",
        ),
    ] = "",
    wal_store: WalStore = "",
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Print the records of a topic: one value per line, JSON with key, headers, offset and
    timestamp, or a template.

    For example: penstock consume orders --from-beginning --until-end --json

    penstock consume orders --offset -10 --template '%p/%o %k: %s\\n'

    penstock consume orders --from-time 2026-01-31T12:00 --format avro --schema orders.avsc
    """
    limits = ends.limits()
    writer = form.writer(records, topic, where.key)
    if snapshot is not None:
        if where.group is not None:
            raise UsageError(
                "--group and --snapshot are mutually exclusive: a snapshot has no committed offsets"
            )
        if limits.rate:
            raise UsageError("--rate and --snapshot are mutually exclusive")
        from penstock.deploy.cli.consume_snapshot import print_snapshot

        print_snapshot(
            topic,
            snapshot,
            store,
            limits.records_max,
            writer,
            on_error=limits.on_error,
            wal_store=wal_store,
        )
        return
    from penstock.deploy.records.reading import Source, read_records

    source = Source(topic, where.partitions or (), where.group, where.begin(), where.isolation)
    printed = read_records(bootstrap, source, limits, writer)
    if printed.is_interrupted:
        end_line_of_interrupt()
    remark(counted(printed.records, "record"))
    if printed.is_interrupted:
        raise KeyboardInterrupt
