"""Run `penstock produce`: send lines as records."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.options import BOOTSTRAP, Bootstrap
from deploy.errors import KafkaFailed, UsageError

if TYPE_CHECKING:
    from deploy.clients.kafka import Kafka
    from deploy.output import Progress

_FLUSH_S = 60.0


def produce(
    topic: str,
    *,
    key_separator: Annotated[
        str | None,
        typer.Option(
            help="Separator of key and value: its first occurrence in a line ends the key."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="File to read instead of standard input.")
    ] = None,
    partition: Annotated[int, typer.Option(help="Partition to write to; -1: by key, or any.")] = -1,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Send each line of standard input (or of a file) as a record. Returns when every record is
    acknowledged (acks=all, idempotent).
    """
    from deploy.clients.kafka import Kafka
    from deploy.output import Progress

    kafka = Kafka(bootstrap)
    kafka.topics()
    separator = None if key_separator is None else key_separator.encode()
    with Progress(f"producing to {topic}", None, "records") as progress:
        sent = _send(kafka, topic, partition, _records(_lines(file), separator), progress)
    print(f"{sent:,} records acknowledged", file=sys.stderr)


def _lines(file: Path | None) -> Iterator[bytes]:
    try:
        with file.open("rb") if file else sys.stdin.buffer as source:
            for line in source:
                yield line.rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(f"--file {file}: {error.strerror}") from None


def _records(
    lines: Iterator[bytes], separator: bytes | None
) -> Iterator[tuple[bytes | None, bytes]]:
    for line in lines:
        key, found, value = line.partition(separator) if separator else (b"", b"", line)
        yield (key, value) if found else (None, line)


def _send(
    kafka: "Kafka",
    topic: str,
    partition: int,
    records: Iterator[tuple[bytes | None, bytes]],
    progress: "Progress",
) -> int:
    from confluent_kafka import KafkaError, KafkaException

    producer = kafka.producer(enable_idempotence=True, linger_ms=20, compression_type="lz4")
    refused: list[KafkaError] = []
    sent = 0

    def delivered(error: KafkaError | None, _message: Any) -> None:  # noqa: ANN401 - the client's message, which is not looked at
        if error is not None:
            refused.append(error)
        else:
            progress.advance()

    for key, value in records:
        while not refused:
            try:
                producer.produce(topic, value, key, partition, on_delivery=delivered)
                sent += 1
                break
            except BufferError:
                producer.poll(0.5)
            except KafkaException as error:
                raise kafka.failure(
                    error.args[0], f"topic {topic!r} did not take the record"
                ) from None
        producer.poll(0)
        if refused:
            break
    left = producer.flush(0 if refused else _FLUSH_S)
    if refused:
        raise kafka.failure(refused[0], f"topic {topic!r} refused a record")
    if left:
        raise KafkaFailed(
            f"{left:,} of {sent:,} records were not acknowledged within {_FLUSH_S:.0f} s; they may"
            " or may not be stored"
        )
    return sent
