"""Run `penstock topics`: create, alter, fork, list, describe, delete and undelete topics; show
offsets; delete records.
"""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.cli.completing import (
    complete_deleted_topics,
    complete_topic_configs,
    complete_topics,
)
from penstock.deploy.cli.config_values import parse_topic_config
from penstock.deploy.cli.confirmation import confirm
from penstock.deploy.cli.incomplete import exit_after, exit_if_incomplete
from penstock.deploy.cli.options import (
    BOOTSTRAP,
    Bootstrap,
    DryRun,
    Output,
    Partitions,
    TopicName,
    Yes,
)
from penstock.deploy.cli.topics_apply import alter, apply
from penstock.deploy.cli.topics_fork import fork
from penstock.deploy.cli.topics_offsets import offsets
from penstock.deploy.errors import UsageError
from penstock.deploy.output import (
    Format,
    counted,
    iso_time,
    print_document,
    print_table,
    remark,
    report,
    report_table,
    say,
)
from penstock.deploy.output import size as size_text

if TYPE_CHECKING:
    from penstock.deploy.admin.topic_sizes import SizeView
    from penstock.deploy.clients.kafka import Kafka, TopicView
    from penstock.protocol.frozen_topics import FrozenTopicInfo

app = typer.Typer(
    help=(
        "Create, apply, alter, fork, list, describe, delete and undelete topics; show their"
        " offsets; delete records."
    ),
    no_args_is_help=True,
)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The new topic.")],
    *,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", help=("Number of partitions; -1: the cluster's default.")
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        typer.Option(
            help=(
                "Number of leader candidates; -1: the cluster's default. Durability comes from the"
                " store."
            )
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="Topic config as KEY=VALUE, as in retention.ms=7d, or KEY=@FILE. Repeatable.",
            autocompletion=complete_topic_configs,
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Create a topic.

    For example: penstock topics create orders --partitions 6 --config retention.ms=1h
    """
    configs = dict(map(parse_topic_config, config or []))
    from penstock.deploy.clients.kafka import Kafka

    kafka = Kafka(bootstrap)
    kafka.create_topic(name, partitions, replication_factor, configs)
    if output is Format.TABLE:
        say(f"created {name}")
        if replication_factor > 1:
            remark(
                "penstock: the object store keeps the records; the replication factor is the number"
                " of brokers that may lead a partition"
            )
        return
    count = len(kafka.topic(name).partitions)
    print_document(output, {"name": name, "partitions": count, "config": configs})


app.command("apply")(apply)
app.command("alter")(alter)
app.command("fork")(fork)


@app.command("list")
def list_topics(
    *,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="List deleted topics that can be restored.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List all topics.

    For example: penstock topics list --output csv
    """
    if deleted:
        _list_deleted(bootstrap, output=output)
        return
    from penstock.deploy.clients.brokers import Brokers

    with Brokers(bootstrap) as brokers:
        topics = brokers.metadata(None).topics
    views = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "with_leader": sum(part.leader_id >= 0 for part in topic.partitions),
        }
        for topic in sorted(topics, key=lambda topic: topic.name or "")
    ]
    columns = ["topic", "partitions", "with a leader"]
    report_table(output, views, "", columns, [list(view.values()) for view in views])


@app.command("describe")
def describe(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC",
            help="Topic; with --size, the default is all topics.",
            autocompletion=complete_topics,
        ),
    ] = None,
    *,
    size: Annotated[
        bool,
        typer.Option(
            "--size",
            help=(
                "Show sizes: bytes in the object store, objects, WAL bytes, storage cost, and "
                "the GETs of one complete read. Each partition counts the bytes of its own "
                "ranges in shared objects; shared bytes are also counted in a fork, a snapshot "
                "or deleted records."
            ),
        ),
    ] = False,
    storage_price: Annotated[
        float, typer.Option(help="For --size: USD per GB and month.", min=0.0)
    ] = 0.023,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show a topic's partitions, offsets and configs, or its size.

    For example: penstock topics describe orders

    penstock topics describe --size
    """
    if name is None and not size:
        raise UsageError("specify a topic, or add --size for the sizes of all topics")
    from penstock.deploy.clients.kafka import Kafka

    kafka = Kafka(bootstrap)
    if size or name is None:
        _describe_sizes(kafka, name, storage_price, output=output)
    else:
        _describe_topic(kafka.topic(name), bootstrap, output=output)


def _describe_topic(topic: "TopicView", bootstrap: str, *, output: Format) -> None:
    from penstock.controller.metadata.configs import TOPIC_RESOURCE
    from penstock.deploy.clients.brokers import Brokers
    from penstock.deploy.clients.configs import describe as describe_configs
    from penstock.protocol.offset_specs import EARLIEST, LATEST

    name = topic.name
    keys = [(name, part.partition) for part in topic.partitions]
    with Brokers(bootstrap) as brokers:
        earliest, problems = brokers.known_offsets(keys, EARLIEST)
        latest, more_problems = brokers.known_offsets(list(earliest), LATEST)
    configs = {
        view.name: str(view.value) for view in describe_configs(bootstrap, (TOPIC_RESOURCE, name))
    }
    if output is not Format.TABLE:
        partitions = [
            {
                "partition": part.partition,
                "leader": part.leader,
                "replicas": part.replicas,
                "isr": part.isr,
                "earliest": earliest.get((name, part.partition)),
                "latest": latest.get((name, part.partition)),
            }
            for part in topic.partitions
        ]
        print_document(output, {"name": name, "partitions": partitions, "configs": configs})
    else:
        rows = [
            (
                part.partition,
                part.leader,
                _ids(part.replicas),
                _ids(part.isr),
                *(known.get((name, part.partition), "unknown") for known in (earliest, latest)),
            )
            for part in topic.partitions
        ]
        print_table(name, ["partition", "leader", "replicas", "isr", "earliest", "latest"], rows)
        print_table("configs", ["name", "value"], configs.items())
    exit_if_incomplete(
        problems | more_problems, "the offsets of the partitions that it leads are unknown"
    )


app.command("offsets")(offsets)


@app.command("delete-records")
def delete_records(
    name: TopicName,
    *,
    before_offset: Annotated[
        int | None, typer.Option(help="Delete the records before this offset.")
    ] = None,
    before_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "Delete the records before the first one at or after this ISO time (UTC if it "
                "has no offset)."
            ),
        ),
    ] = None,
    all_records: Annotated[bool, typer.Option("--all", help="Delete all records.")] = False,
    partition: Partitions = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete the oldest records of a topic.

    Partitions without a record at or after --before-time are left unchanged.

    They can be restored in a new topic during their grace period (`delete.grace.ms`, or the topic's
    `penstock.delete.grace.ms`): see `penstock topics undelete --records`.

    For example: penstock topics delete-records orders --before-time 2026-01-31 --dry-run
    """
    if (before_offset is not None) + (before_time is not None) + all_records != 1:
        raise UsageError("specify one of --before-offset, --before-time and --all")
    from penstock.deploy.clients.kafka import Kafka

    kafka = Kafka(bootstrap)
    there = [part.partition for part in kafka.topic(name).partitions]
    if unknown := sorted(set(partition or ()) - set(there)):
        raise UsageError(f"--partition {_ids(unknown)}: {name} has {_ids(there)}")
    offsets = kafka.offsets(name, partition or there)
    ends = {index: latest for index, (_, latest) in offsets.items()}
    if before_time is not None:
        from penstock.deploy.admin.groups.reset import parse_time

        found = kafka.first_offsets(name, list(ends), parse_time(before_time))
        starts = {at: offsets[at][0] if start is None else start for at, start in found.items()}
        _remark_kept(name, [at for at in ends if found[at] is None and ends[at] > offsets[at][0]])
    else:
        starts = ends if before_offset is None else dict.fromkeys(ends, before_offset)
    count = sum(max(0, min(starts[at], ends[at]) - offsets[at][0]) for at in ends)
    if dry_run:
        _print_records_to_delete(name, offsets, starts, output)
        return
    confirm(f"delete up to {counted(count, 'record')} of {name}?", yes=yes)
    results = kafka.delete_records(name, starts)
    views = [
        {"partition": at, "earliest": None, "error": found}
        if isinstance(found, str)
        else {"partition": at, "earliest": found, "error": None}
        for at, found in results.items()
    ]
    rows = [
        (at, offsets[at][0], offsets[at][0] if isinstance(found, str) else found, ends[at])
        for at, found in results.items()
    ]
    columns = ["partition", "earliest before", "earliest", "latest"]
    report_table(output, views, name, columns, rows)
    exit_after([found for found in results.values() if isinstance(found, str)])


def _remark_kept(name: str, partitions: Sequence[int]) -> None:
    """Print the partitions in which no records were deleted. A lookup by time never deletes all
    records of a partition, because timestamps may be wrong or missing.
    """
    if partitions:
        remark(
            f"{name}: partitions {_ids(partitions)} have no record as new as --before-time and keep"
            " all records; --all deletes them"
        )


def _print_records_to_delete(
    name: str, offsets: Mapping[int, tuple[int, int]], starts: Mapping[int, int], output: Format
) -> None:
    views = [
        {
            "partition": at,
            "earliest": earliest,
            "new_earliest": max(earliest, min(starts[at], latest)),
            "latest": latest,
        }
        for at, (earliest, latest) in offsets.items()
    ]
    columns = ["partition", "earliest", "new earliest", "latest"]
    rows = [list(view.values()) for view in views]
    report_table(output, views, f"{name}: nothing was changed", columns, rows)


@app.command("delete")
def delete(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="Topic; NAME@TOPIC_ID permanently removes a deleted topic.",
            autocompletion=complete_topics,
        ),
    ],
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete a topic with all its records.

    It can be restored during its grace period (`delete.grace.ms`, or its own
    `penstock.delete.grace.ms`): see `penstock topics undelete`.

    For example: penstock topics delete orders --dry-run
    """
    from penstock.deploy.clients.frozen_topics import delete_topic, deleted_topics, full_name
    from penstock.deploy.clients.kafka import Kafka

    is_purge = name in map(full_name, deleted_topics(bootstrap))
    what = f"{name} for good" if is_purge else _contents(Kafka(bootstrap), name)
    view: dict[str, object] = {
        "name": name,
        "for_good": is_purge,
        "topic_id": None,
        "until": None,
    }
    if dry_run:
        report(output, {**view, "dry_run": True}, f"would delete {what}; nothing was changed")
        return
    confirm(f"delete {what}?", yes=yes)
    found = delete_topic(bootstrap, name)
    done = f"removed {name} for good" if is_purge else f"deleted {name}"
    if found is not None:
        view |= {"topic_id": str(found.topic_id), "until": _until(found)}
        done += f"; until {view['until']} `penstock topics undelete {name}` brings it back"
    report(output, {**view, "dry_run": False}, done)


def _contents(kafka: "Kafka", name: str) -> str:
    """Describe a topic and its records for the confirmation prompt."""
    partitions = [part.partition for part in kafka.topic(name).partitions]
    offsets = kafka.offsets(name, partitions)
    records = sum(latest - earliest for earliest, latest in offsets.values())
    return f"{name}: {counted(len(partitions), 'partition')}, up to {counted(records, 'record')}"


@app.command("undelete")
def undelete(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help=(
                "Deleted topic: its name, which selects the latest one, or its id as in "
                "`penstock topics list --deleted`. With --records, the topic whose records "
                "were deleted."
            ),
            autocompletion=complete_deleted_topics,
        ),
    ],
    *,
    new_name: Annotated[
        str | None,
        typer.Option("--as", metavar="NEW", help="New name of the topic.", show_default=False),
    ] = None,
    records: Annotated[
        bool,
        typer.Option(
            "--records",
            help=(
                "Restore records deleted by `delete-records`, and all later ones, into a new "
                "topic given by --as."
            ),
        ),
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Restore a deleted topic with its records, configs and committed offsets.

    With --records, create a new topic with the deleted records of another topic, because the log
    start of a topic never moves back. Records removed by retention or compaction cannot be
    restored.

    For example: penstock topics undelete orders --as orders-again
    """
    if records:
        _undelete_records(bootstrap, name, new_name, output=output, dry_run=dry_run)
        return
    from penstock.deploy.clients.frozen_topics import find_deleted
    from penstock.deploy.clients.kafka import Kafka

    found = find_deleted(bootstrap, name)
    returned = new_name or found.name
    view = {"name": returned, "deleted_name": found.name, "topic_id": found.topic_id}
    if dry_run:
        would = f"would bring {found.name} back as {returned}, until {_until(found)}"
        report(output, {**view, "dry_run": True}, would)
        return
    kafka = Kafka(bootstrap)
    began = monotonic()
    kafka.create_topic(returned, -1, -1, {"penstock.undelete": str(found.topic_id)})
    took_ms = round((monotonic() - began) * 1_000)
    was, count = "" if returned == found.name else f" as {returned}", len(found.partitions)
    done = f"undeleted {found.name}{was} with {counted(count, 'partition')} in {took_ms:,} ms"
    report(output, {**view, "partitions": count, "took_ms": took_ms}, done)


def _undelete_records(
    bootstrap: str, name: str, new_name: str | None, *, output: Format, dry_run: bool
) -> None:
    if new_name is None:
        raise UsageError(
            "--records needs --as NEW, because the log start of a topic never moves back"
        )
    from penstock.deploy.clients.kafka import Kafka

    kafka = Kafka(bootstrap)
    partitions = [part.partition for part in kafka.topic(name).partitions]
    if dry_run:
        view = {"name": new_name, "source": name, "dry_run": True}
        report(output, view, f"would create {new_name} with the deleted records of {name}")
        return
    began = monotonic()
    kafka.create_topic(
        new_name,
        -1,
        -1,
        {"penstock.fork.source": name, "penstock.fork.deleted.records": "true"},
    )
    took_ms = round((monotonic() - began) * 1_000)
    before, after = kafka.offsets(name, partitions), kafka.offsets(new_name, partitions)
    document = {
        "name": new_name,
        "source": name,
        "partitions": [
            {"partition": at, "earliest": after[at][0], "source_earliest": before[at][0]}
            for at in partitions
        ],
        "took_ms": took_ms,
    }
    rows = [(at, before[at][0], *after[at]) for at in partitions]
    columns = ["partition", f"earliest in {name}", "earliest", "latest"]
    report_table(output, document, f"{new_name}, in {took_ms:,} ms", columns, rows)


def _list_deleted(bootstrap: str, *, output: Format) -> None:
    """Print the deleted topics, and the topics with deleted records, that can be restored."""
    from penstock.deploy.admin.cost import Prices, storage_usd_month
    from penstock.deploy.clients.frozen_topics import deleted_records, deleted_topics

    rows = [
        (
            topic.name,
            "records" if topic.of_live_topic else "topic",
            str(topic.topic_id),
            iso_time(topic.since_ms),
            _until(topic),
            len(topic.partitions),
            size_bytes := sum(partition.size_bytes for partition in topic.partitions),
            storage_usd_month(size_bytes, Prices()),
        )
        for topic in [*deleted_topics(bootstrap), *deleted_records(bootstrap)]
    ]
    keys = ("name", "what", "topic_id", "deleted", "until", "partitions", "bytes", "usd_month")
    views = [dict(zip(keys, row, strict=True)) for row in rows]
    cells = [(*row[:-2], size_text(row[-2]), f"{row[-1]:,.4f}") for row in rows]
    columns = ["topic", "deleted", "id", "at", "until", "partitions", "bytes", "USD/month"]
    report_table(output, views, "", columns, cells)


def _until(topic: "FrozenTopicInfo") -> str:
    """Return the end of the grace period of a deleted topic or of deleted records."""
    return iso_time(topic.since_ms + topic.keep_ms)


def _describe_sizes(kafka: "Kafka", name: str | None, price: float, *, output: Format) -> None:
    """Print the partition sizes of one topic, or of all topics."""
    from penstock.deploy.admin.cost import Prices
    from penstock.deploy.admin.topic_sizes import topic_sizes, total

    topics = kafka.topics() if name is None else [kafka.topic(name)]
    sizes = topic_sizes(kafka.brokers(), topics, Prices(storage_usd_per_gb_month=price))
    if output is not Format.TABLE:
        print_document(output, sizes)
        return
    columns = [
        "bytes",
        "shared",
        "objects",
        "WAL bytes",
        "storage USD/month",
        "GETs to read",
        "USD to read",
    ]
    if name is None:
        rows = [(topic.name, len(topic.partitions), *_cells(topic.size)) for topic in sizes]
        sums = (
            "total",
            sum(len(topic.partitions) for topic in sizes),
            *_cells(total([t.size for t in sizes])),
        )
        print_table("sizes of topics", ["topic", "partitions", *columns], [*rows, sums])
        return
    for topic in sizes:
        parts = [
            (str(part.partition), str(part.leader), *_cells(part.size)) for part in topic.partitions
        ]
        rows = [*parts, ("total", "", *_cells(topic.size))]
        print_table(f"size of {topic.name}", ["partition", "leader", *columns], rows)


def _cells(size: "SizeView") -> tuple[object, ...]:
    return (
        "-" if size.stored_bytes is None else size_text(size.stored_bytes),
        "-" if size.shared_bytes is None else size_text(size.shared_bytes),
        size.objects,
        "-" if size.wal_bytes is None else size_text(size.wal_bytes),
        "-" if size.usd_month is None else f"{size.usd_month:,.4f}",
        size.read_requests,
        "-" if size.read_usd is None else f"{size.read_usd:,.4f}",
    )


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "-"
