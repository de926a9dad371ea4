"""Run `penstock groups`: list, describe and delete groups, reset and delete their offsets."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.deploy.cli.completing import complete_groups, complete_topics
from penstock.deploy.cli.confirmation import confirm
from penstock.deploy.cli.incomplete import exit_after, exit_if_incomplete
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, GroupName, Output, Yes
from penstock.deploy.cli.reset_options import ResetGoal, goal_of
from penstock.deploy.errors import UsageError
from penstock.deploy.output import (
    Format,
    counted,
    print_document,
    print_table,
    report,
    report_table,
    say,
)

if TYPE_CHECKING:
    from penstock.deploy.admin.groups.views import GroupView, ListedGroup, MemberView
    from penstock.deploy.clients.brokers import Brokers
    from penstock.protocol.client.brokers import Partition

MISSING_GROUPS: Final = "the groups that it coordinates are missing"

app = typer.Typer(
    help="List, describe and delete consumer groups; reset and delete their offsets.",
    no_args_is_help=True,
)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GROUP",
        help="Only these.",
        autocompletion=complete_groups,
        show_default="all groups",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC[:0,1]",
        help="Topic, optionally with partitions. Repeatable.",
        autocompletion=complete_topics,
    ),
]
AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="All topics with committed offsets of the group.")
]


@app.command("list")
def list_(
    *,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            help="Only groups in this state: Empty, PreparingRebalance, CompletingRebalance,"
            " Assigning, Reconciling, NotReady, Stable, Dead. Repeatable.",
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="Only groups of this type: classic, consumer, share, streams. Repeatable.",
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List the groups of all types with their states and lags.

    Lag is the number of offsets between the committed offsets of a group and the ends of the logs;
    it is `-` if a required broker does not respond or the group has no committed offsets.

    For example: penstock groups list --type share --output json
    """
    from penstock.broker.groups.common.model import GroupState, GroupType
    from penstock.deploy.admin.groups.admin import listed_groups, with_lags
    from penstock.deploy.clients.brokers import Brokers

    wanted_states = _named("--state", states, [state.value for state in GroupState])
    wanted_types = _named("--type", types, [kind.value for kind in GroupType])
    with Brokers(bootstrap) as brokers:
        listing = with_lags(brokers, listed_groups(brokers, wanted_states, wanted_types))
    rows = [
        (item.group, item.type, item.state, item.protocol or "-", item.lag)
        for item in listing.groups
    ]
    columns = ("group", "type", "state", "protocol", "lag")
    report_table(output, listing.groups, "", columns, rows)
    exit_if_incomplete(listing.problems, MISSING_GROUPS)


def _named(option: str, given: "Sequence[str] | None", known: "Sequence[str]") -> list[str]:
    """Return the values in Kafka's spelling. Raises UsageError for unknown values."""
    by_name = {name.lower(): name for name in known}
    for value in given or ():
        if value.lower() not in by_name:
            raise UsageError(f"{option} {value!r}: use one of {', '.join(known)}")
    return [by_name[value.lower()] for value in given or ()]


@app.command("describe")
def describe(
    names: Names = None,
    *,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the committed offsets, lag and assigned member of each partition.

    Lag is the number of offsets between the committed offset and the end of the log. Members of a
    streams group (KIP-1071) are shown with their tasks: partitions by subtopology.

    For example: penstock groups describe billing
    """
    from penstock.deploy.admin.groups.admin import described, found_groups
    from penstock.deploy.clients.brokers import Brokers

    with Brokers(bootstrap) as brokers:
        listing = found_groups(brokers, names or ())
        views = [described(brokers, group) for group in listing.groups]
    if output is not Format.TABLE:
        print_document(output, views)
    else:
        for view in views:
            _print_group(view)
    exit_if_incomplete(listing.problems, MISSING_GROUPS)


@app.command("reset-offsets")
def reset_offsets(
    group: GroupName,
    *,
    topics: Topics = None,
    all_topics: AllTopics = False,
    goal: ResetGoal,
    execute: Annotated[
        bool, typer.Option("--execute", help="Set the offsets instead of only printing them.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Set the offsets of a group without active members. Without --execute, only print the result.

    An offset outside the log is replaced by the nearest end of the log. A group that does not exist
    is created.

    For example: penstock groups reset-offsets billing --topic orders --to-earliest --execute

    penstock groups reset-offsets billing --all-topics --by-duration PT1H
    """
    if execute and dry_run:
        raise UsageError("--execute and --dry-run are mutually exclusive")
    wanted_goal = goal_of(goal)
    from penstock.deploy.admin.groups import reset
    from penstock.deploy.clients.brokers import Brokers

    with Brokers(bootstrap) as brokers:
        found = _group(brokers, group)
        if wanted_goal.exact is not None and not (topics or all_topics):
            wanted = list(wanted_goal.exact)
        else:
            wanted = _partitions(brokers, found, topics, all_topics=all_topics)
        planned = reset.plan(brokers, found, wanted, wanted_goal)
        if execute:
            confirm(f"set {counted(len(planned), 'offset')} of group {group}?", yes=yes)
            reset.execute(brokers, found, planned)
    rows = [(item.topic, item.partition, item.current_offset, item.new_offset) for item in planned]
    columns = ("topic", "partition", "current offset", "new offset")
    report_table(output, planned, "", columns, rows)
    if output is Format.TABLE:
        say("the offsets are set" if execute else "nothing was changed; --execute sets the offsets")


@app.command("delete")
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="GROUP", help="The groups.", autocompletion=complete_groups),
    ],
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete groups that have no members, and their offsets.

    For example: penstock groups delete billing --dry-run
    """
    from penstock.deploy.admin.groups.admin import delete as delete_group
    from penstock.deploy.admin.groups.admin import found_groups
    from penstock.deploy.clients.brokers import Brokers
    from penstock.protocol.client.errors import KafkaFailed

    problems: dict[str, str | None] = {}
    with Brokers(bootstrap) as brokers:
        found = found_groups(brokers, names).groups
        if not dry_run:
            confirm(f"delete {counted(len(found), 'group')} with their offsets?", yes=yes)
        for item in found:
            try:
                if not dry_run:
                    delete_group(brokers, item.group)
                problems[item.group] = None
            except KafkaFailed as error:
                problems[item.group] = str(error)
    views = [
        {
            "group": item.group,
            "type": item.type,
            "state": item.state,
            "deleted": not dry_run and problems[item.group] is None,
            "error": problems[item.group],
        }
        for item in found
    ]
    sentences = [
        f"would delete {item.group} ({item.type}, {item.state})"
        if dry_run
        else f"deleted {item.group}"
        for item in found
        if problems[item.group] is None
    ]
    report(output, views, *sentences)
    exit_after([problem for problem in problems.values() if problem])


@app.command("delete-offsets")
def delete_offsets(
    group: GroupName,
    *,
    topics: Topics = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete the offsets of a group in topics that no member is subscribed to.

    For example: penstock groups delete-offsets billing --topic orders
    """
    if not topics:
        raise UsageError("specify topics: --topic TOPIC, or --topic TOPIC:0,1")
    from penstock.deploy.admin.groups import reset
    from penstock.deploy.admin.groups.admin import found_groups
    from penstock.deploy.clients.brokers import Brokers

    with Brokers(bootstrap) as brokers:
        (found,) = found_groups(brokers, [group]).groups
        wanted = reset.parse_topics(brokers, topics)
        if not dry_run:
            confirm(f"delete {counted(len(wanted), 'offset')} of group {group}?", yes=yes)
            reset.delete_offsets(brokers, found, wanted)
    views = [
        {"group": group, "topic": topic, "partition": at, "deleted": not dry_run}
        for topic, at in wanted
    ]
    done = "would delete" if dry_run else "deleted"
    shown = ", ".join(f"{topic}-{at}" for topic, at in wanted)
    report(output, views, f"{done} the offsets of {group} in {shown}")


def _group(brokers: "Brokers", name: str) -> "ListedGroup":
    """Return the group, or an empty group if it does not exist."""
    from penstock.deploy.admin.groups.admin import found_group, listed_groups
    from penstock.deploy.admin.groups.views import GroupType, ListedGroup

    listing = listed_groups(brokers)
    found = [item for item in listing.groups if item.group == name]
    if not found and listing.problems:
        return found_group(brokers, name)
    return found[0] if found else ListedGroup(name, GroupType.CLASSIC, "Dead", "consumer", -1)


def _partitions(
    brokers: "Brokers", group: "ListedGroup", topics: Sequence[str] | None, *, all_topics: bool
) -> "list[Partition]":
    """Return the partitions selected by the options. Raises UsageError."""
    from penstock.deploy.admin.groups.admin import committed, share_start_offsets
    from penstock.deploy.admin.groups.reset import parse_topics
    from penstock.deploy.admin.groups.views import GroupType

    if bool(topics) == all_topics:
        raise UsageError("specify --topic TOPIC, --topic TOPIC:0,1 or --all-topics")
    if topics:
        return parse_topics(brokers, topics)
    has_read = share_start_offsets if group.type == GroupType.SHARE else committed
    return brokers.existing(has_read(brokers, group.group))


def _print_group(view: "GroupView") -> None:
    title = f"{view.group}: {view.type}, {view.state}, coordinator {view.coordinator}"
    if view.topology_epoch is not None:
        title += f", topology epoch {view.topology_epoch}"
    columns = ("topic", "partition", "current offset", "log end offset", "lag", "client", "host")
    rows = [
        (
            item.topic,
            item.partition,
            item.current_offset,
            item.log_end_offset,
            item.lag,
            item.client_id or "-",
            item.host or "-",
        )
        for item in view.offsets
    ]
    title += ", lag -" if view.lag is None else f", lag {view.lag:,}"
    without_end = sum(item.log_end_offset is None for item in view.offsets)
    if without_end:
        title += f" (the leaders of {counted(without_end, 'partition')} do not respond)"
    if view.uncommitted:
        partitions = counted(view.uncommitted, "partition")
        title += f" (not counted: {partitions} without a committed offset)"
    print_table(title, columns, rows)
    if not view.members:
        return
    about: tuple[str, ...] = ("member", "instance", "client", "host", "partitions")
    if view.topology_epoch is not None:
        about = ("member", "process", "client", "host", "active", "standby", "warm-up")
    print_table("members", about, [_member_row(member) for member in view.members])


def _member_row(member: "MemberView") -> tuple[str, ...]:
    client, tasks = (member.client_id, member.host), member.tasks
    if tasks is None:
        return (member.member_id, member.instance_id or "-", *client, _shown(member.partitions))
    return (
        member.member_id,
        member.process_id or "-",
        *client,
        _shown(tasks.active),
        _shown(tasks.standby),
        _shown(tasks.warmup),
    )


def _shown(partitions: "Mapping[str, Sequence[int]]") -> str:
    """Show partitions by topic or subtopology."""
    shown = (f"{name}:{','.join(map(str, ids))}" for name, ids in partitions.items())
    return " ".join(shown) or "-"
