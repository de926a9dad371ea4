"""Run `penstock topics fork`: create a topic that starts with the records of another topic."""

from time import monotonic
from typing import Annotated

import typer

from penstock.deploy.cli.completing import (
    complete_snapshots,
    complete_topic_configs,
    complete_topics,
)
from penstock.deploy.cli.config_values import parse_topic_config
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, print_document, print_table, say

Source = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="The topic to fork.", autocompletion=complete_topics),
]
AtTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help=("End before the first record at or after this ISO time (UTC if it has no offset)."),
    ),
]


def fork(
    source: Source,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The new topic.")],
    *,
    at_time: AtTime = None,
    at_offsets: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=(
                "End partitions before these offsets: JSON as for kafka-delete-records, "
                '{"partitions": [{"topic", "partition", "offset"}]}; - for standard input. '
                "Other partitions are forked at their end."
            ),
        ),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Fork the topic as of this snapshot.",
            autocompletion=complete_snapshots,
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="Topic config as KEY=VALUE, overriding that of the source. Repeatable.",
            autocompletion=complete_topic_configs,
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Create a topic that starts with the records of another topic.

    Nothing is copied: both topics reference the same objects, but are otherwise independent.
    Batches are not split: a partition ends at the last batch boundary at or before the requested
    offset. Transactions that are open at that point are aborted in the new topic.

    For example: penstock topics fork orders orders-test --at-time 2026-01-31T12:00:00
    """
    if sum(option is not None for option in (at_time, at_offsets, snapshot)) > 1:
        raise UsageError("specify only one of --at-time, --at-offsets and --snapshot")
    if snapshot is not None:
        from penstock.stream.format.manifest.model import in_snapshot

        source = in_snapshot(source, snapshot)
    configs = {"penstock.fork.source": source} | dict(map(parse_topic_config, config or []))
    if at_time is not None:
        from penstock.deploy.admin.groups.reset import parse_time

        configs["penstock.fork.timestamp.ms"] = str(parse_time(at_time))
    if at_offsets is not None:
        from penstock.deploy.admin.fork_offsets import read_offsets

        configs["penstock.fork.offsets"] = read_offsets(at_offsets, source)
    from penstock.deploy.clients.kafka import Kafka

    kafka, began = Kafka(bootstrap), monotonic()
    kafka.create_topic(name, -1, -1, configs)
    took_ms = round((monotonic() - began) * 1_000)
    offsets = kafka.offsets(name, [at.partition for at in kafka.topic(name).partitions])
    if output is not Format.TABLE:
        partitions = [
            {"partition": at, "earliest": earliest, "latest": latest}
            for at, (earliest, latest) in offsets.items()
        ]
        view = {"name": name, "source": source, "took_ms": took_ms, "partitions": partitions}
        print_document(output, view)
        return
    rows = [(at, *bounds, bounds[1] - bounds[0]) for at, bounds in offsets.items()]
    print_table(name, ["partition", "earliest", "latest", "offsets"], rows)
    say(f"forked {source} to {name} in {took_ms:,} ms")
