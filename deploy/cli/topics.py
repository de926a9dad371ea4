"""Run `penstock topics`: create, list, describe and delete topics."""

from typing import Annotated

import typer

from deploy.cli.options import BOOTSTRAP, AsJson, Bootstrap
from deploy.errors import UsageError

app = typer.Typer(help="Create, list, describe and delete topics.", no_args_is_help=True)


@app.command("create")
def create(
    name: str,
    *,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", help=("Number of partitions; -1: the cluster's default.")
        ),
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(help="Number of leader candidates; durability comes from the store.")
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help=(
                "Topic config as KEY=VALUE. Repeatable. Retention and compaction configs are"
                " accepted but not applied yet."
            ),
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Create a topic."""
    configs = dict(_pair(text) for text in config or [])
    from deploy.clients.kafka import Kafka

    Kafka(bootstrap).create_topic(name, partitions, replication_factor, configs)
    print(f"created {name}")


@app.command("list")
def list_topics(*, bootstrap: Bootstrap = BOOTSTRAP, as_json: AsJson = False) -> None:
    """List all topics."""
    from deploy.clients.kafka import Kafka
    from deploy.output import print_json, print_table

    topics = Kafka(bootstrap).topics()
    if as_json:
        print_json([{"name": topic.name, "partitions": len(topic.partitions)} for topic in topics])
        return
    rows = [
        (topic.name, len(topic.partitions), sum(part.leader >= 0 for part in topic.partitions))
        for topic in topics
    ]
    print_table("", ["topic", "partitions", "with a leader"], rows)


@app.command("describe")
def describe(name: str, *, bootstrap: Bootstrap = BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a topic's partitions, offsets and configs."""
    from deploy.clients.kafka import Kafka
    from deploy.output import print_json, print_table

    kafka = Kafka(bootstrap)
    topic = kafka.topic(name)
    offsets = kafka.offsets(name, [part.partition for part in topic.partitions])
    configs = kafka.topic_config(name)
    if as_json:
        partitions = [
            {
                "partition": part.partition,
                "leader": part.leader,
                "replicas": part.replicas,
                "isr": part.isr,
                "earliest": offsets[part.partition][0],
                "latest": offsets[part.partition][1],
            }
            for part in topic.partitions
        ]
        print_json({"name": name, "partitions": partitions, "configs": configs})
        return
    rows = [
        (part.partition, part.leader, _ids(part.replicas), _ids(part.isr), *offsets[part.partition])
        for part in topic.partitions
    ]
    print_table(name, ["partition", "leader", "replicas", "isr", "earliest", "latest"], rows)
    print_table("configs", ["name", "value"], configs.items())


@app.command("delete")
def delete(name: str, *, bootstrap: Bootstrap = BOOTSTRAP) -> None:
    """Delete a topic and everything in it."""
    from deploy.clients.kafka import Kafka

    kafka = Kafka(bootstrap)
    kafka.topic(name)
    kafka.delete_topic(name)
    print(f"deleted {name}")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--config {text!r} is not allowed: KEY=VALUE, as in retention.ms=3600000")
    return key, value


def _ids(ids: list[int]) -> str:
    return ",".join(map(str, ids)) or "-"
