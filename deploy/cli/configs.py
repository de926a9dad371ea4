"""Run `penstock configs`: describe, alter and list configs of brokers, their loggers, client
metrics, groups and topics.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.deploy.cli.completing import (
    complete_brokers,
    complete_client_metrics,
    complete_config_names,
    complete_config_values,
    complete_groups,
    complete_topics,
)
from penstock.deploy.cli.config_values import parse_pair
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report, report_table

if TYPE_CHECKING:
    from penstock.deploy.clients.configs import ConfigView

app = typer.Typer(
    help=(
        "Describe, alter and list dynamic configs of brokers, loggers, client metrics, groups "
        "and topics."
    ),
    no_args_is_help=True,
)


_DEFAULT: Final = "its default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """Options that select a resource; exactly one is allowed."""

    broker: Annotated[
        int | None,
        typer.Option("--broker", min=0, help="Broker id.", autocompletion=complete_brokers),
    ] = None
    all_brokers: Annotated[
        bool, typer.Option("--all-brokers", help="Configs that apply to all brokers.")
    ] = False
    broker_logger: Annotated[
        int | None,
        typer.Option(
            "--broker-logger",
            min=0,
            help="Broker id, to change the log levels of one broker until it restarts.",
            autocompletion=complete_brokers,
        ),
    ] = None
    client_metrics: Annotated[
        str | None,
        typer.Option(
            "--client-metrics",
            help=(
                "Name of a client metrics subscription (KIP-714). Brokers need "
                "client.metrics.otlp.endpoint."
            ),
            autocompletion=complete_client_metrics,
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option("--group", help="Group id.", autocompletion=complete_groups),
    ] = None
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Topic name.", autocompletion=complete_topics),
    ] = None

    def only(self) -> tuple[int, str]:
        """Return Kafka's resource type and name of the selected resource. Raises UsageError."""
        from penstock.controller.metadata import configs

        given = (
            (configs.BROKER_RESOURCE, self.broker),
            (configs.BROKER_RESOURCE, "" if self.all_brokers else None),
            (configs.BROKER_LOGGER_RESOURCE, self.broker_logger),
            (configs.CLIENT_METRICS_RESOURCE, self.client_metrics),
            (configs.GROUP_RESOURCE, self.group),
            (configs.TOPIC_RESOURCE, self.topic),
        )
        named = [(kind, str(name)) for kind, name in given if name is not None]
        if len(named) != 1:
            raise UsageError(
                "specify one of --broker, --all-brokers, --broker-logger, --client-metrics, "
                "--group and --topic"
            )
        return named[0]


@app.command("list")
def list_(*, bootstrap: Bootstrap = BOOTSTRAP, output: Output = Format.TABLE) -> None:
    """List the groups and the client metrics that have configs.

    `penstock topics list` and `penstock nodes` list topics and brokers.

    For example: penstock configs list
    """
    from penstock.deploy.clients import configs

    found = configs.resources(bootstrap)
    rows = [(view.type, view.name) for view in found]
    report_table(output, found, "", ("type", "name"), rows)


@app.command("describe")
def describe(
    *,
    resource: ResourceOptions,
    show_all: Annotated[
        bool, typer.Option("--all", help="Include configs with default values.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the configs of a broker, of all brokers, of client metrics, of a group or of a topic, or
    the levels of a broker's loggers.

    For example: penstock configs describe --topic orders --all
    """
    from penstock.deploy.clients import configs

    with_docs = output is not Format.TABLE
    found = configs.describe(bootstrap, resource.only(), with_docs=with_docs)
    if not show_all:
        found = [view for view in found if view.source not in configs.DEFAULT_SOURCES]
    columns = ("name", "value", "source", "fallback")
    report_table(output, found, "configs", columns, [_row(view) for view in found])


@app.command("alter")
def alter(
    *,
    resource: ResourceOptions,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help=(
                "Config to set, as in retention.ms=7d; KEY=@FILE takes the value from a file."
                " Repeatable."
            ),
            autocompletion=complete_config_values,
        ),
    ] = None,
    deleted: Annotated[
        list[str] | None,
        typer.Option(
            "--delete",
            metavar="KEY",
            help="Config to delete; rejected if it is not set. Repeatable.",
            autocompletion=complete_config_names,
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Set and delete configs. Either all changes are made or none.

    With --dry-run, the cluster validates the values, and the command prints the changes.

    For example: penstock configs alter --topic orders --set retention.ms=1h --dry-run

    penstock configs alter --broker-logger 1 --set penstock.broker.groups=DEBUG
    """
    from penstock.deploy.clients import configs

    changes: dict[str, str | None] = {}
    for text in values or ():
        name, value = parse_pair("--set", text, "max.connections=500")
        changes[name] = value
    changes |= dict.fromkeys(deleted or ())
    if not changes:
        raise UsageError("nothing to change: add --set KEY=VALUE or --delete KEY")
    named = resource.only()
    is_shown = dry_run or output is not Format.TABLE
    found = configs.describe(bootstrap, named) if is_shown or deleted else []
    # Brokers accept the deletion of any config name, so a typo would look like a change.
    if unset := sorted(set(deleted or ()) - configs.set_names(found, named)):
        raise UsageError(
            f"--delete {unset[0]}: it is not set; `penstock configs describe` lists the "
            "configs that are set"
        )
    before = {view.name: view.value for view in found}
    configs.alter(bootstrap, named, changes, validate_only=dry_run)
    views = [
        {
            "resource": named[1],
            "name": name,
            "old_value": before.get(name),
            "new_value": after,
            "dry_run": dry_run,
        }
        for name, after in changes.items()
    ]
    would = [
        f"would change {name} from {before.get(name, _DEFAULT)} to"
        f" {_DEFAULT if after is None else after}"
        for name, after in changes.items()
    ]
    report(output, views, *(would if dry_run else [f"Changed {', '.join(changes)}"]))


def _row(view: "ConfigView") -> tuple[str, str, str, str]:
    others = ", ".join(f"{value or '-'} ({source})" for value, source in view.others)
    return view.name, view.value, view.source, others or "-"
