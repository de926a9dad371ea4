"""Run `penstock transactions`: list and describe transactions, find and abort hanging
transactions.
"""

import time
from typing import Annotated

import typer

from penstock.deploy.cli.completing import complete_topics
from penstock.deploy.cli.incomplete import exit_after, exit_if_incomplete
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report, report_table, with_iso_times
from penstock.protocol.client.errors import KafkaFailed

app = typer.Typer(
    help="List and describe transactions, find and abort hanging ones.", no_args_is_help=True
)

_MINUTE_MS = 60_000


@app.command("list")
def list_transactions(
    *,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only ids in this state, for example Ongoing. Repeatable."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--transactional-id-pattern",
            help="Only ids that completely match this regular expression (RE2).",
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List the transactional ids of all coordinators with their states.

    For example: penstock transactions list --state Ongoing
    """
    from penstock.deploy.admin.transactions.admin import TransactionsClient

    with TransactionsClient(bootstrap) as admin:
        found, problems = admin.listed_by_responding(state or (), pattern=pattern)
    rows = [
        (item.transactional_id, item.state, str(item.producer_id), str(item.coordinator))
        for item in found
    ]
    columns = ("transactional id", "state", "producer id", "coordinator")
    report_table(output, found, "", columns, rows)
    exit_if_incomplete(problems, "the transactional ids that it coordinates are missing")


@app.command("describe")
def describe(
    transactional_id: Annotated[
        str, typer.Argument(metavar="TRANSACTIONAL_ID", help="The transactional id.")
    ],
    *,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the producer, the state and the partitions of one transactional id.

    For example: penstock transactions describe payments-1
    """
    from penstock.deploy.admin.transactions.admin import TransactionsClient

    with TransactionsClient(bootstrap) as admin:
        view = admin.describe(transactional_id)
    age_s = None if view.started_ms is None else time.time() - view.started_ms / 1_000
    rows = [
        ("state", view.state),
        ("coordinator", str(view.coordinator)),
        ("producer id, epoch", f"{view.producer_id}, {view.producer_epoch}"),
        ("timeout", f"{view.timeout_ms / 1_000:,.0f} s"),
        ("open for", "-" if age_s is None else f"{age_s:,.0f} s"),
        ("partitions", "\n".join(view.partitions) or "-"),
    ]
    document = with_iso_times(view, "started")
    report_table(output, document, view.transactional_id, ("", ""), rows)


Topic = Annotated[
    str | None,
    typer.Option("--topic", help="Search only this topic.", autocompletion=complete_topics),
]
Partition = Annotated[
    int | None, typer.Option("--partition", min=0, help="Search only this partition of the topic.")
]


@app.command("find-hanging")
def find_hanging(
    *,
    topic: Topic = None,
    partition: Partition = None,
    timeout_minutes: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            min=0,
            help="Minutes without a record before a transaction is considered hanging.",
        ),
    ] = 15,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Find open transactions that no coordinator will end.

    They hold back the last stable offset of their partition, where `read_committed` consumers wait.
    Use `penstock transactions abort` to end them.

    For example: penstock transactions find-hanging --topic orders
    """
    if partition is not None and topic is None:
        raise UsageError("--partition needs --topic")
    from penstock.deploy.admin.transactions.admin import TransactionsClient

    now_ms = time.time_ns() // 1_000_000
    with TransactionsClient(bootstrap) as admin:
        found, missing = admin.find_hanging(topic, partition, timeout_minutes * _MINUTE_MS, now_ms)
    columns = ("topic", "partition", "start offset", "producer id", "epoch", "minutes")
    rows = [
        (
            item.topic,
            str(item.partition),
            str(item.start_offset),
            str(item.producer_id),
            str(item.producer_epoch),
            None if item.last_timestamp_ms < 0 else (now_ms - item.last_timestamp_ms) // _MINUTE_MS,
        )
        for item in found
    ]
    report_table(output, with_iso_times(found, "last_timestamp"), "", columns, rows)
    exit_after([f"{reason}; the result is incomplete" for reason in missing])


@app.command("abort")
def abort(
    *,
    topic: Annotated[
        str,
        typer.Option("--topic", help="Topic of the transaction.", autocompletion=complete_topics),
    ],
    partition: Annotated[int, typer.Option("--partition", min=0, help="Partition of it.")],
    start_offset: Annotated[
        int,
        typer.Option(
            "--start-offset", min=0, help="Offset of the first record of the transaction."
        ),
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Abort the transaction even if its coordinator will end it."),
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Abort a hanging transaction in one partition.

    This is rejected if the coordinator will end the transaction, because the records in this
    partition would be lost even if the producer commits.

    For example: penstock transactions abort --topic orders --partition 0 --start-offset 42
    """
    from penstock.deploy.admin.transactions.admin import TransactionsClient
    from penstock.deploy.admin.transactions.views import still_open

    with TransactionsClient(bootstrap) as admin:
        found = [
            item
            for item in admin.open_transactions(topic, partition)
            if item.start_offset == start_offset
        ]
        if not found:
            raise KafkaFailed(
                f"no open transaction in {topic}-{partition} starts at offset {start_offset}; "
                "`penstock transactions find-hanging` shows the start offsets"
            )
        if not force and not admin.not_driven(found):
            raise KafkaFailed(
                f"the transaction at offset {start_offset} of {topic}-{partition} does not hang:"
                " its coordinator ends it when the producer does, or at its timeout. --force"
                " aborts it in this partition alone"
            )
        view = {
            "topic": topic,
            "partition": partition,
            "start_offset": start_offset,
            "producer_id": found[0].producer_id,
            "dry_run": dry_run,
        }
        what = f"the transaction of producer {found[0].producer_id} in {topic}-{partition}"
        if dry_run:
            report(output, view, f"would abort {what}")
            return
        # A hanging transaction remains open; the coordinator may have ended others in the meantime.
        if still_open(found, admin.open_transactions(topic, partition)):
            admin.abort(found[0])
    report(output, view, f"aborted {what}")
