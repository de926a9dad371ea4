"""Run `penstock reassign`: choose the brokers that lead partitions, with the file formats and
output of `kafka-reassign-partitions`.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import ExpectedError
from penstock.deploy.cli.completing import complete_partitions
from penstock.deploy.cli.options import (
    BOOTSTRAP,
    Bootstrap,
    Controller,
    DryRun,
    Output,
    StateFile,
)
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, say
from penstock.protocol.client.errors import KafkaFailed

app = typer.Typer(
    help="Move partitions to other brokers: generate, execute, verify, cancel, trace.",
    no_args_is_help=True,
)

TopicsFile = Annotated[
    Path,
    typer.Option("--topics-to-move-json-file", help='{"topics": [{"topic": "foo"}], "version": 1}'),
]
BrokerList = Annotated[
    str, typer.Option("--broker-list", help="Ids of the brokers to move to, as in 0,1,2.")
]
ReassignmentFile = Annotated[
    Path,
    typer.Option(
        "--reassignment-json-file",
        help='{"version": 1, "partitions": [{"topic": "foo", "partition": 0, "replicas": [1, 2]}]}',
    ),
]


@app.command("generate")
def generate(
    *,
    topics_file: TopicsFile,
    broker_list: BrokerList,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Propose an assignment of whole topics to a list of brokers. Changes nothing.

    Machine-readable formats print only the proposal, which `execute` accepts as a file.

    For example: penstock reassign generate --topics-to-move-json-file topics.json --broker-list 1,2
    """
    from penstock.deploy.admin.reassign.admin import current_assignment
    from penstock.deploy.admin.reassign.plan import (
        document,
        parse_brokers,
        parse_topics,
        propose,
        to_json,
    )
    from penstock.deploy.clients.wire import WireClient
    from penstock.deploy.output import print_document

    topics, brokers = parse_topics(_read(topics_file)), parse_brokers(broker_list)
    with WireClient(bootstrap) as client:
        current, present = current_assignment(client, topics)
    if unknown := sorted(set(brokers) - present):
        raise UsageError(
            f"--broker-list: brokers {unknown} do not exist; existing brokers: {sorted(present)}"
        )
    proposed = propose(current, brokers)
    if output is not Format.TABLE:
        print_document(output, document(proposed))
        return
    say("Current partition replica assignment", to_json(current), "")
    say("Proposed partition reassignment configuration", to_json(proposed))


@app.command("execute")
def execute(
    *,
    reassignment_file: ReassignmentFile,
    additional: Annotated[
        bool,
        typer.Option("--additional", help="Start even if other partitions are being reassigned."),
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Start the reassignments in a file. The first broker of each list is the preferred leader; a
    leader moves only if it is not in the list.

    For example: penstock reassign execute --reassignment-json-file moves.json --dry-run
    """
    from penstock.deploy.admin.reassign.admin import current_assignment, ongoing, reassign
    from penstock.deploy.admin.reassign.plan import ids, parse_reassignment, to_json
    from penstock.deploy.clients.wire import WireClient

    wanted = parse_reassignment(_read(reassignment_file))
    with WireClient(bootstrap) as client:
        if not additional and ongoing(client):
            raise KafkaFailed(
                "Cannot execute because there is an existing partition assignment. Use"
                " --additional to override this and create a new partition assignment in"
                " addition to the existing one."
            )
        current, _ = current_assignment(client, {key.topic for key in wanted})
        if missing := [str(key) for key in sorted(wanted) if key not in current]:
            raise KafkaFailed(f"these partitions do not exist: {', '.join(missing)}")
        if dry_run:
            for key, replicas in sorted(wanted.items()):
                say(f"would reassign {key} from {ids(current[key])} to {ids(replicas)}")
            return
        before = to_json({key: current[key] for key in wanted})
        say("Current partition replica assignment", "", before, "")
        say("Save this to use as the --reassignment-json-file option during rollback")
        problems = reassign(client, wanted)
    begun = [str(key) for key in sorted(wanted) if key not in problems]
    if begun:
        plural = "s" if len(begun) > 1 else ""
        say(f"Successfully started partition reassignment{plural} for {','.join(begun)}")
    if problems:
        raise KafkaFailed(
            "Error reassigning partition(s):\n"
            + "\n".join(f"{key}: {text}" for key, (_, text) in sorted(problems.items()))
        )


@app.command("verify")
def verify(
    *,
    reassignment_file: ReassignmentFile,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the progress of each partition in a file. Exits with 1 unless all are completed.

    For example: penstock reassign verify --reassignment-json-file moves.json
    """
    from penstock.deploy.admin.reassign.admin import current_assignment, ongoing
    from penstock.deploy.admin.reassign.plan import parse_reassignment, status_of
    from penstock.deploy.clients.wire import WireClient
    from penstock.deploy.output import print_document

    wanted = parse_reassignment(_read(reassignment_file))
    with WireClient(bootstrap) as client:
        moving = ongoing(client)
        current, _ = current_assignment(client, {key.topic for key in wanted})
    states = {
        key: status_of(key, replicas, current.get(key), moving)
        for key, replicas in sorted(wanted.items())
    }
    if output is not Format.TABLE:
        print_document(
            output,
            [
                {"topic": key.topic, "partition": key.partition, "completed": done, "status": text}
                for key, (done, text) in states.items()
            ],
        )
    else:
        say("Status of partition reassignment:", *(text for _, text in states.values()))
    if not all(done for done, _ in states.values()):
        raise typer.Exit(1)


@app.command("cancel")
def cancel(
    *,
    reassignment_file: ReassignmentFile,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Cancel the ongoing reassignments in a file; the previous leaders are restored.

    For example: penstock reassign cancel --reassignment-json-file moves.json --dry-run
    """
    from penstock.deploy.admin.reassign.admin import ongoing, reassign
    from penstock.deploy.admin.reassign.plan import parse_reassignment
    from penstock.deploy.clients.wire import WireClient
    from penstock.protocol.error_codes import ErrorCode

    wanted = parse_reassignment(_read(reassignment_file))
    with WireClient(bootstrap) as client:
        if dry_run:
            active = [str(key) for key in sorted(wanted) if key in ongoing(client)]
            say(f"would cancel the reassignment of {', '.join(active) or 'no partition'}")
            return
        problems = reassign(client, dict.fromkeys(wanted))
    cancelled = [str(key) for key in sorted(wanted) if key not in problems]
    failed = {
        key: text
        for key, (code, text) in problems.items()
        if code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    }
    if cancelled:
        plural = "s" if len(cancelled) > 1 else ""
        names = ",".join(cancelled)
        say(f"Successfully cancelled partition reassignment{plural} for: {names}")
    elif not failed:
        say("None of the specified partition reassignments are active.")
    if failed:
        raise KafkaFailed(
            "Error cancelling partition reassignment(s):\n"
            + "\n".join(f"{key}: {text}" for key, text in sorted(failed.items()))
        )


@app.command("trace")
def trace(
    partition: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC-PARTITION",
            help="The partition, as in orders-0.",
            autocompletion=complete_partitions,
        ),
    ],
    *,
    controller: Controller = None,
    state_file: StateFile = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the steps of a partition's last planned move, and the milliseconds that each step
    took.

    For example: penstock reassign trace orders-0
    """
    from penstock.deploy.admin.reassign.trace import parse_partition, request_move
    from penstock.deploy.clients.metadata import find_controller
    from penstock.deploy.output import print_document, print_table

    key = parse_partition(partition)
    move = request_move(find_controller(controller, state_file, os.environ), key)
    if move is None:
        raise ExpectedError(
            f"{key} has no planned move (reassignment, preferred election or draining)"
        )
    if output is not Format.TABLE:
        print_document(output, move)
        return
    rows = [
        (step.number, step.by, step.what, "?" if step.took_ms is None else f"{step.took_ms:.1f}")
        for step in move.steps
    ]
    total = "?" if move.total_ms is None else f"{move.total_ms:.1f}"
    print_table(
        f"{key}: broker {move.source} to broker {move.target} in {total} ms",
        ["step", "by", "what", "ms"],
        rows,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
