"""Run `penstock configs`: describe and alter configs of brokers, groups and topics."""

from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.completing import (
    complete_brokers,
    complete_config_names,
    complete_config_values,
    complete_groups,
    complete_topics,
)
from deploy.cli.config_values import parse_pair
from deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output
from deploy.errors import UsageError
from deploy.output import Format, say

if TYPE_CHECKING:
    from deploy.clients.configs import ConfigView

app = typer.Typer(
    help=(
        "Describe and alter configs of brokers, groups and topics, which take effect while the"
        " cluster runs."
    ),
    no_args_is_help=True,
)

Broker = Annotated[
    int | None,
    typer.Option(
        "--broker", min=0, help="The broker with this id.", autocompletion=complete_brokers
    ),
]
AllBrokers = Annotated[bool, typer.Option("--all-brokers", help="The configs of all brokers.")]
Group = Annotated[
    str | None,
    typer.Option("--group", help="The group with this id.", autocompletion=complete_groups),
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", help="The topic with this name.", autocompletion=complete_topics),
]


@app.command("describe")
def describe(
    *,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    group: Group = None,
    topic: Topic = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show what has its default.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the configs of one broker, of all brokers, of a group or of a topic.

    For example: penstock configs describe --topic orders --all
    """
    from deploy.clients import configs
    from deploy.output import print_document, print_table

    found = configs.describe(bootstrap, _resource(broker, group, topic, all_brokers=all_brokers))
    if not show_all:
        found = [view for view in found if view.source not in configs.DEFAULT_SOURCES]
    if output is not Format.TABLE:
        print_document(output, found)
        return
    print_table("configs", ("name", "value", "from", "else"), [_row(view) for view in found])


@app.command("alter")
def alter(
    *,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    group: Group = None,
    topic: Topic = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Config to set; KEY=@FILE takes the value from a file. Repeatable.",
            autocompletion=complete_config_values,
        ),
    ] = None,
    deleted: Annotated[
        list[str] | None,
        typer.Option(
            "--delete",
            metavar="KEY",
            help="Config to take away. Repeatable.",
            autocompletion=complete_config_names,
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Set configs and take configs away. Either all changes are made or none.

    With --dry-run the cluster checks the values, and the command shows what would change.

    For example: penstock configs alter --topic orders --set retention.ms=3600000 --dry-run
    """
    from deploy.clients import configs

    changes: dict[str, str | None] = {}
    for text in values or ():
        name, value = parse_pair("--set", text, "max.connections=500")
        changes[name] = value
    changes |= dict.fromkeys(deleted or ())
    if not changes:
        raise UsageError("nothing to change: add --set KEY=VALUE or --delete KEY")
    resource = _resource(broker, group, topic, all_brokers=all_brokers)
    if dry_run:
        before = {view.name: view.value for view in configs.describe(bootstrap, resource)}
        configs.alter(bootstrap, resource, changes, validate_only=True)
        for name, after in changes.items():
            was = before.get(name, "its default")
            say(f"would change {name} from {was} to {'its default' if after is None else after}")
        return
    configs.alter(bootstrap, resource, changes)
    say(f"Changed {', '.join(changes)}")


def _resource(
    broker: int | None, group: str | None, topic: str | None, *, all_brokers: bool
) -> tuple[int, str]:
    """Return Kafka's type and the name of the only resource that the options name."""
    from controller.metadata.configs import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE

    named = [
        (kind, name)
        for kind, name in (
            (BROKER_RESOURCE, None if broker is None else str(broker)),
            (BROKER_RESOURCE, "" if all_brokers else None),
            (GROUP_RESOURCE, group),
            (TOPIC_RESOURCE, topic),
        )
        if name is not None
    ]
    if len(named) != 1:
        raise UsageError("name one of --broker, --all-brokers, --group and --topic")
    return named[0]


def _row(view: "ConfigView") -> tuple[str, str, str, str]:
    others = ", ".join(f"{value or '-'} ({source})" for value, source in view.others)
    return view.name, view.value, view.source, others or "-"
