"""Run `penstock topics apply` and `alter`: apply a file of topics, or add partitions."""

import sys
from typing import Annotated

import typer

from penstock.deploy.cli.input_files import read_file
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output, TopicName
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, counted, print_document, report, say


def apply(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help=(
                'JSON or TOML: {"topics": [{"name", "partitions", "configs"}]}; - for JSON on'
                " standard input."
            ),
        ),
    ],
    *,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Create the topics in a file, add missing partitions, and set configs.

    Nothing is deleted; other topics and configs are left unchanged. Applying a file again changes
    nothing.

    For example: penstock topics apply topics.json --dry-run
    """
    from penstock.controller.metadata.configs import TOPIC_RESOURCE
    from penstock.deploy.admin.topic_plan import FoundTopic, plan, read_wanted
    from penstock.deploy.clients import configs
    from penstock.deploy.clients.kafka import Kafka

    content = sys.stdin.buffer.read() if file == "-" else read_file(file, file)
    wanted = read_wanted(content, "standard input" if file == "-" else file)
    kafka = Kafka(bootstrap)
    there = {view.name: len(view.partitions) for view in kafka.topics()}
    found = {
        topic.name: FoundTopic(
            there[topic.name],
            {
                config.name: config.value
                for config in configs.describe(bootstrap, (TOPIC_RESOURCE, topic.name))
                if config.source == "topic"
            }
            if topic.configs
            else {},
        )
        for topic in wanted
        if topic.name in there
    }
    changes = plan(wanted, found)
    for change in changes:
        if not dry_run:
            if change.is_new:
                kafka.create_topic(change.name, change.partitions or -1, -1, change.configs)
            else:
                if change.partitions is not None:
                    kafka.add_partitions(change.name, change.partitions)
                if change.configs:
                    configs.alter(bootstrap, (TOPIC_RESOURCE, change.name), change.configs)
        if output is Format.TABLE:
            say(f"{'would ' if dry_run else ''}{change.shown}")
    if output is not Format.TABLE:
        print_document(output, changes)
        return
    unchanged = len(wanted) - len(changes)
    say(f"{unchanged} of {counted(len(wanted), 'topic')} unchanged")


def _refuse_configs(given: list[str] | None) -> None:
    """Raise UsageError for configs, which `kafka-topics.sh --alter` once supported. The error
    contains the command to use instead.
    """
    if given:
        raise UsageError(
            f"`penstock configs alter --topic TOPIC --set {given[0]}` changes configs; `topics"
            " alter` only adds partitions"
        )


def alter(
    name: TopicName,
    *,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", min=1, help="New number of partitions; it can only increase."
        ),
    ],
    _config: Annotated[
        list[str] | None,
        typer.Option("--config", "--set", hidden=True, is_eager=True, callback=_refuse_configs),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Add partitions to a topic.

    New records may be written to different partitions than earlier records with the same key.
    Existing records are not moved. `penstock configs alter` changes the configs of a topic.

    For example: penstock topics alter orders --partitions 12
    """
    from penstock.deploy.clients.kafka import Kafka

    Kafka(bootstrap).add_partitions(name, partitions)
    view = {"name": name, "partitions": partitions}
    report(output, view, f"{name} has {counted(partitions, 'partition')}")
