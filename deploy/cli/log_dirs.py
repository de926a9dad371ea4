"""Run `penstock log-dirs`: show the sizes of partitions in the object store, as reported by
brokers.
"""

from typing import Annotated

import typer

from penstock.deploy.cli.completing import complete_brokers, complete_topics
from penstock.deploy.cli.incomplete import exit_if_incomplete
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report_table, size

app = typer.Typer(
    help="Show the size of partitions in the object store, by broker.", no_args_is_help=True
)


@app.command("describe")
def describe(
    *,
    brokers: Annotated[
        list[int] | None,
        typer.Option(
            "--broker", help="Only this broker. Repeatable.", autocompletion=complete_brokers
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="Only this topic. Repeatable.", autocompletion=complete_topics
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the log directories of brokers. The only log directory is the store, which all brokers
    share.

    Each broker reports the partitions that it leads. `penstock topics describe --size` adds objects
    and cost.

    For example: penstock log-dirs describe --topic orders --output csv
    """
    from penstock.deploy.clients.log_dirs import describe_log_dirs

    found, problems = describe_log_dirs(bootstrap, brokers or (), topics or ())
    responding = {*problems, *(item.broker for item in found)}
    if brokers and (unknown := sorted(set(brokers) - responding)):
        raise UsageError(f"--broker {unknown[0]}: this broker does not exist or is not running")
    rows = [
        (item.broker, item.log_dir, part.topic, part.partition, size(part.size_bytes))
        for item in found
        for part in item.partitions
    ]
    report_table(output, found, "", ("broker", "log dir", "topic", "partition", "bytes"), rows)
    exit_if_incomplete(problems, "the partitions that it leads are missing")
