"""Run `penstock snapshots`: create, list, describe, delete and restore snapshots of topics."""

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.cli.completing import complete_snapshots, complete_topics
from penstock.deploy.cli.confirmation import confirm
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output, Yes
from penstock.deploy.errors import print_error
from penstock.deploy.output import (
    Format,
    counted,
    iso_time,
    print_document,
    print_table,
    report,
    report_table,
    size,
    waiting,
)

if TYPE_CHECKING:
    from penstock.deploy.admin.snapshots import RestoredView
    from penstock.protocol.frozen_topics import FrozenTopicInfo

Name = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT", help="Snapshot name, 1 to 100 characters: a-z, A-Z, 0-9, '.', '_', '-'."
    ),
]
Existing = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="The snapshot.", autocompletion=complete_snapshots)
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        help="Only these topics, separated by commas. Repeatable.",
        autocompletion=complete_topics,
    ),
]

app = typer.Typer(
    help="Create, list, describe, delete and restore topic snapshots.",
    no_args_is_help=True,
)


@app.command("create")
def create(
    name: Name,
    *,
    topics: Topics = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Create a snapshot of topics: offsets, configs and the offsets of consumer groups.

    Without --topics, it includes all topics except internal ones. Nothing is copied: the objects
    are kept as long as the snapshot exists, even if the topics are deleted.

    For example: penstock snapshots create nightly --topics orders,customers
    """
    from penstock.deploy.admin.snapshots import create_snapshot, view_snapshots

    began = monotonic()
    with waiting(f"creating snapshot {name}"):
        found = create_snapshot(bootstrap, name, _split(topics))
    (view,) = view_snapshots(found)
    took_ms = round((monotonic() - began) * 1_000)
    report(
        output,
        {"snapshot": view, "took_ms": took_ms},
        f"created {name}: {counted(view.topics, 'topic')}, {counted(view.partitions, 'partition')},"
        f" {counted(view.records, 'record')}, {size(view.size_bytes)}, offsets of"
        f" {counted(view.groups, 'group')}, in {took_ms:,} ms",
    )


@app.command("list")
def list_snapshots(*, bootstrap: Bootstrap = BOOTSTRAP, output: Output = Format.TABLE) -> None:
    """List all snapshots, oldest first.

    For example: penstock snapshots list --output json
    """
    from penstock.deploy.admin.snapshots import view_snapshots
    from penstock.deploy.clients.frozen_topics import frozen_topics

    views = view_snapshots(frozen_topics(bootstrap))
    rows = [
        (
            view.name,
            view.created,
            view.topics,
            view.partitions,
            view.records,
            size(view.size_bytes),
            view.groups,
        )
        for view in views
    ]
    columns = ["snapshot", "created", "topics", "partitions", "records", "bytes", "groups"]
    report_table(output, views, "", columns, rows)


@app.command("describe")
def describe(
    name: Existing,
    *,
    topics: Topics = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the partitions, configs and offsets of consumer groups of a snapshot.

    For example: penstock snapshots describe nightly
    """
    from penstock.deploy.admin.snapshots import find_snapshot

    found = find_snapshot(bootstrap, name, _split(topics))
    if output is not Format.TABLE:
        print_document(output, [_as_json(topic) for topic in found])
        return
    print_table(
        f"{name}, created {iso_time(min(topic.since_ms for topic in found))}",
        ["topic", "partition", "earliest", "latest", "records", "bytes"],
        [
            (
                topic.name,
                at,
                part.start_offset,
                part.end_offset,
                part.record_count,
                size(part.size_bytes),
            )
            for topic in found
            for at, part in enumerate(topic.partitions)
        ],
    )
    print_table(
        "configs",
        ["topic", "name", "value"],
        [
            (topic.name, key, value)
            for topic in found
            for key, value in sorted(topic.configs.items())
        ],
    )
    print_table(
        "offsets of consumer groups",
        ["group", "topic", "partition", "offset"],
        [
            (group, topic.name, at, offset)
            for topic in found
            for group, offsets in topic.group_offsets.items()
            for at, offset in offsets.items()
        ],
    )


@app.command("delete")
def delete(
    name: Existing,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete a snapshot. This cannot be undone.

    For example: penstock snapshots delete nightly --dry-run
    """
    from penstock.deploy.admin.snapshots import delete_snapshot, find_snapshot, view_snapshots

    found = find_snapshot(bootstrap, name)
    (view,) = view_snapshots(found)
    if dry_run:
        shown = f"{counted(view.topics, 'topic')}, {counted(view.records, 'record')}"
        report(output, view, f"would delete {name}: {shown}")
        return
    confirm(f"delete {name} with {counted(view.records, 'record')}?", yes=yes)
    with waiting(f"deleting snapshot {name}"):
        delete_snapshot(bootstrap, found)
    deleted = f"{counted(view.topics, 'topic')}, {size(view.size_bytes)}"
    report(output, view, f"deleted {name}: {deleted}")


@app.command("restore")
def restore(
    name: Existing,
    *,
    topics: Topics = None,
    new_name: Annotated[
        str, typer.Option("--as", metavar="TOPIC", help="The name of the new topic, for one topic.")
    ] = "",
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Delete existing topics, including all records written since the snapshot.",
        ),
    ] = False,
    with_groups: Annotated[
        bool,
        typer.Option(
            "--with-groups",
            help="Set the offsets of consumer groups to those of the snapshot; none may be active.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Create topics from a snapshot, with its records and configs. The snapshot is kept.

    For example: penstock snapshots restore nightly --topics orders --as orders-yesterday
    """
    from penstock.deploy.admin.snapshots import find_snapshot, planned
    from penstock.deploy.admin.snapshots import restore as restore_topics

    found = find_snapshot(bootstrap, name, _split(topics))
    if dry_run:
        views = planned(bootstrap, found, new_name=new_name, replaces=replace)
        _print_restored(views, output)
        return
    if replace:
        confirm(f"delete topics that exist and restore {counted(len(found), 'topic')}?", yes=yes)
    with waiting(f"restoring {counted(len(found), 'topic')} of {name}"):
        views = restore_topics(
            bootstrap, found, new_name=new_name, replaces=replace, groups=with_groups
        )
    _print_restored(views, output)
    if any(view.problems for view in views):
        raise typer.Exit(1)


def _print_restored(views: "Sequence[RestoredView]", output: Format) -> None:
    rows = [(view.topic, view.source, view.groups) for view in views]
    report_table(output, views, "", ["topic", "restored from", "groups"], rows)
    for view in views:
        for problem in view.problems:
            print_error(f"{view.topic}: {problem}")


def _split(topics: Sequence[str] | None) -> list[str]:
    names = [name.strip() for item in topics or () for name in item.split(",")]
    return list(dict.fromkeys(name for name in names if name))


def _as_json(topic: "FrozenTopicInfo") -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "created": iso_time(topic.since_ms),
        "configs": topic.configs,
        "partitions": [
            {
                "partition": at,
                "earliest": part.start_offset,
                "latest": part.end_offset,
                "records": part.record_count,
                "bytes": part.size_bytes,
            }
            for at, part in enumerate(topic.partitions)
        ],
        "groups": {
            group: {str(at): offset for at, offset in offsets.items()}
            for group, offsets in topic.group_offsets.items()
        },
    }
