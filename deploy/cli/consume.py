"""Run `penstock consume`: print records."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, cast

import typer

from deploy.cli.options import BOOTSTRAP, Bootstrap
from deploy.errors import KafkaFailed, UsageError
from deploy.record_line import encode_record_line

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_POLL_S = 0.2


def consume(
    topic: str,
    *,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", help="Start with the oldest record instead of the next one."
        ),
    ] = False,
    max_messages: Annotated[
        int | None, typer.Option(help="Stop after this many records.", show_default=False)
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Join this consumer group and commit offsets.", show_default=False),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Stop after this many seconds without a record.", show_default=False),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            help="Print the topic as it is in this snapshot, read from the store.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_STORE",
            help="For --snapshot: store of the brokers; default: that of `penstock dev`.",
        ),
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each record as one JSON object per line.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Print the records of a topic: one value per line, or JSON with key, headers, offset and
    timestamp.
    """
    if max_messages is not None and max_messages < 1:
        raise UsageError(f"--max-messages {max_messages} is not allowed: 1 or more")
    if snapshot is not None:
        if group is not None:
            raise UsageError(
                "--group and --snapshot exclude each other: a snapshot has no committed offsets"
            )
        from deploy.cli.consume_snapshot import print_snapshot

        print_snapshot(topic, snapshot, store, max_messages, as_json=as_json)
        return
    from deploy.clients.kafka import Kafka

    kafka = Kafka(bootstrap)
    partitions = [part.partition for part in kafka.topic(topic).partitions]
    begin = "earliest" if from_beginning else "latest"
    consumer = kafka.consumer(
        group_id=group or "penstock-cli",
        auto_offset_reset=begin,
        enable_auto_commit=group is not None,
    )
    try:
        if group is None:
            _assign(consumer, topic, partitions, from_beginning)
        else:
            consumer.subscribe([topic])
        printed = _print_records(consumer, max_messages, timeout, as_json)
    finally:
        consumer.close()
    print(f"{printed:,} records", file=sys.stderr)


def _assign(consumer: "Consumer", topic: str, partitions: list[int], from_beginning: bool) -> None:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    begin = OFFSET_BEGINNING if from_beginning else OFFSET_END
    consumer.assign([TopicPartition(topic, index, begin) for index in partitions])


def _print_records(
    consumer: "Consumer", max_messages: int | None, timeout_s: float | None, as_json: bool
) -> int:
    printed = 0
    heard_at = time.monotonic()
    while max_messages is None or printed < max_messages:
        message = consumer.poll(_POLL_S)
        if message is None:
            if timeout_s is not None and time.monotonic() - heard_at >= timeout_s:
                break
            continue
        error = message.error()
        if error is not None:
            if not error.retriable():
                raise KafkaFailed(f"{error.str()} ({error.name()})")
            continue
        heard_at = time.monotonic()
        sys.stdout.buffer.write(
            (_json_line(message) if as_json else message.value() or b"") + b"\n"
        )
        sys.stdout.buffer.flush()
        printed += 1
    return printed


def _json_line(message: "Message[bytes, bytes]") -> bytes:
    _kind, timestamp_ms = message.timestamp()
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return encode_record_line(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp_ms,
        key=message.key(),
        value=message.value(),
        headers=headers,
    )
