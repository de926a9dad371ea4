"""Run `penstock produce`: send lines as records."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, Rate, TopicName
from penstock.deploy.cli.record_options import RecordOptions
from penstock.deploy.errors import UsageError, near_hint
from penstock.deploy.output import (
    Progress,
    counted,
    end_line_of_interrupt,
    print_json_line,
    remark,
    say,
)

if TYPE_CHECKING:
    from confluent_kafka import Message

    from penstock.deploy.records.lines import LineReader
    from penstock.deploy.records.sending import SendOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """Options for the contents of records."""

    file: Annotated[
        Path | None,
        typer.Option("--from-file", help="File to read instead of standard input."),
    ] = None
    value: Annotated[
        str | None,
        typer.Option("--value", help="Value to send instead of reading lines.", show_default=False),
    ] = None
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help=(
                "Each line is a JSON object with value, key, headers, partition and timestamp_ms,"
                " as `penstock consume --json` prints it with the same --format."
            ),
        ),
    ] = False
    key: Annotated[
        str | None,
        typer.Option("--key", help="Key for records that have none.", show_default=False),
    ] = None
    key_separator: Annotated[
        str | None,
        typer.Option(
            help="Separator of key and value: its first occurrence in a line ends the key."
        ),
    ] = None
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "--headers", "-H", metavar="NAME=VALUE", help="Header. Repeatable."
        ),
    ] = None
    partition: Annotated[
        int,
        typer.Option(
            "--partition",
            "-p",
            help="Partition to write to; -1: by key, or any partition for records without a key.",
        ),
    ] = -1
    timestamp: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help=(
                "Timestamp of the records, as an ISO time (UTC if it has no offset); default: now."
            ),
        ),
    ] = ""
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            min=1,
            help="Stop after this many records; with --value, send the value this many times.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    """Options for sending records."""

    acks: Annotated[
        Literal["all", "1", "0"],
        typer.Option(help="Required acknowledgements; with all, the producer is idempotent."),
    ] = "all"
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        typer.Option(help="Compression of batches."),
    ] = "lz4"
    transactional_id: Annotated[
        str, typer.Option(help="Send all records in one transaction with this transactional id.")
    ] = ""
    rate: Rate = 0.0
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print the partition and offset of each record."),
    ] = False
    output: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--output",
            "-o",
            help="json: print topic, partition, offset and timestamp of each record as JSON.",
        ),
    ] = "text"


def produce(
    topic: TopicName,
    *,
    what: _Input,
    delivery: _Delivery,
    records: RecordOptions,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Send each line of standard input, or of a file, as a record. The command ends when every
    record is acknowledged (acks=all, idempotent). On a terminal, each line is sent immediately;
    Ctrl-D ends the input.

    For example: echo 'ada,3 books' | penstock produce orders --key-separator ,

    penstock produce orders --value '{"total": 3}' --format json --count 1000 --rate 100

    penstock consume orders --from-beginning --until-end --json | penstock produce copy --json
    """
    is_interactive = what.value is None and what.file is None and sys.stdin.isatty()
    reader = _reader(topic, what, records)
    sending = _sending(topic, delivery, is_interactive=is_interactive)
    from penstock.deploy.records.sending import send

    lines: Iterable[bytes] = _prompted() if is_interactive else _lines(what.file)
    if what.value is not None:
        lines = repeat(what.value.encode("utf-8", "surrogateescape"), what.count or 1)
    wanted = islice(reader.records(lines), what.count)
    printer = _printer(delivery)
    is_shown = not is_interactive and not (printer and sys.stdout.isatty())
    with Progress(f"producing to {topic}", what.count, "records", is_shown=is_shown) as progress:
        sent = send(bootstrap, wanted, sending, progress, printer)
    if sent.is_interrupted:
        end_line_of_interrupt()
    remark(f"{counted(sent.records, 'record')} acknowledged")
    if sent.records and topic not in sent.topics:
        hint = near_hint(topic, sent.topics, "auto.create.topics.enable=false prevents this")
        remark(f"topic {topic!r} did not exist and was created; {hint}")
    if sent.is_interrupted:
        raise KeyboardInterrupt


def _printer(delivery: _Delivery) -> "Callable[[Message[bytes, bytes]], None] | None":
    """Return a function that prints the position of an acknowledged record, or None."""
    if delivery.output == "json":
        return lambda message: print_json_line(
            {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "timestamp_ms": message.timestamp()[1],
            }
        )
    if delivery.verbose:
        return lambda message: say(
            f"{message.topic()} partition {message.partition()} offset {message.offset()}"
        )
    return None


def _reader(topic: str, what: _Input, records: RecordOptions) -> "LineReader":
    """Raises UsageError."""
    from penstock.deploy.admin.groups.reset import parse_time
    from penstock.deploy.records.lines import LineReader, parse_headers

    if what.value is not None and what.file is not None:
        raise UsageError("--value and --from-file are mutually exclusive")
    keys, values = records.codecs(topic)
    return LineReader(
        keys,
        values,
        separator=what.key_separator or "",
        key=what.key,
        headers=parse_headers(what.headers or ()),
        partition=what.partition,
        timestamp_ms=parse_time(what.timestamp) if what.timestamp else 0,
        is_json=what.as_json,
    )


def _sending(topic: str, delivery: _Delivery, *, is_interactive: bool) -> "SendOptions":
    """Raises UsageError."""
    from penstock.deploy.records.sending import SendOptions

    if delivery.transactional_id and delivery.acks != "all":
        raise UsageError("--transactional-id needs --acks all")
    return SendOptions(
        topic,
        delivery.acks,
        delivery.compression,
        delivery.transactional_id,
        delivery.rate,
        is_interactive=is_interactive and not delivery.transactional_id,
    )


def _prompted() -> Iterator[bytes]:
    """Yield the lines entered at a prompt on stderr."""
    remark("one record per line; Ctrl-D ends the input")
    while True:
        sys.stderr.write("> ")
        sys.stderr.flush()
        line = sys.stdin.buffer.readline()
        if not line:
            sys.stderr.write("\n")
            return
        yield line.rstrip(b"\r\n")


def _lines(file: Path | None) -> Iterator[bytes]:
    try:
        with file.open("rb") if file else sys.stdin.buffer as source:
            for line in source:
                yield line.rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(f"--from-file {file}: {error.strerror}") from None
