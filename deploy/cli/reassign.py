"""Run `penstock reassign`: choose the brokers that lead partitions, with the file formats and
output of `kafka-reassign-partitions`.
"""

from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import ExpectedError
from penstock.deploy.cli.completing import complete_partitions
from penstock.deploy.cli.incomplete import exit_if_failed
from penstock.deploy.cli.input_files import read_text
from penstock.deploy.cli.options import (
    BOOTSTRAP,
    Bootstrap,
    Controllers,
    DryRun,
    Output,
)
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report, report_table, say
from penstock.protocol.client.errors import KafkaFailed
from penstock.protocol.error_codes import ErrorCode, explain

app = typer.Typer(
    help="Move partitions to other brokers: generate, execute, verify, cancel, trace.",
    no_args_is_help=True,
)
_NOT_ACTIVE = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS

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
    """Propose an assignment of whole topics to a list of brokers, without changing anything.

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

    topics, brokers = parse_topics(read_text(topics_file)), parse_brokers(broker_list)
    with WireClient(bootstrap) as client:
        current, present = current_assignment(client, topics)
    if unknown := sorted(set(brokers) - present):
        raise UsageError(
            f"--broker-list: brokers {unknown} do not exist; existing brokers: {sorted(present)}"
        )
    proposed = propose(current, brokers)
    report(
        output,
        document(proposed),
        *("Current partition replica assignment", to_json(current), ""),
        *("Proposed partition reassignment configuration", to_json(proposed)),
    )


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
    output: Output = Format.TABLE,
) -> None:
    """Start the reassignments in a file. The first broker of each list is the preferred leader; a
    leader moves only if it is not in the list.

    For example: penstock reassign execute --reassignment-json-file moves.json --dry-run
    """
    from penstock.deploy.admin.reassign.admin import current_assignment, ongoing, reassign
    from penstock.deploy.admin.reassign.plan import document, ids, parse_reassignment, to_json
    from penstock.deploy.clients.wire import WireClient

    wanted = parse_reassignment(read_text(reassignment_file))
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
        before = {key: current[key] for key in wanted}
        if output is Format.TABLE and not dry_run:
            say("Current partition replica assignment", "", to_json(before), "")
            say("Save this to use as the --reassignment-json-file option during rollback")
        problems = {} if dry_run else reassign(client, wanted)
    failed = {key: explain(*problem) for key, problem in problems.items()}
    views = [
        {**key._asdict(), "replicas": replicas, "error": failed.get(key)}
        for key, replicas in sorted(wanted.items())
    ]
    begun = [str(key) for key in sorted(wanted) if key not in problems]
    if dry_run:
        sentences = [
            f"would reassign {key} from {ids(before[key])} to {ids(replicas)}"
            for key, replicas in sorted(wanted.items())
        ]
    elif begun:
        plural = "s" if len(begun) > 1 else ""
        sentences = [f"Successfully started partition reassignment{plural} for {','.join(begun)}"]
    else:
        sentences = []
    view = {"dry_run": dry_run, "rollback": document(before), "partitions": views}
    report(output, view, *sentences)
    exit_if_failed("Error reassigning partition(s)", failed)


@app.command("verify")
def verify(
    *,
    reassignment_file: ReassignmentFile,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the progress of each partition in a file. The exit code is 1 unless all are completed.

    For example: penstock reassign verify --reassignment-json-file moves.json
    """
    from penstock.deploy.admin.reassign.admin import current_assignment, ongoing
    from penstock.deploy.admin.reassign.plan import parse_reassignment, status_of
    from penstock.deploy.clients.wire import WireClient

    wanted = parse_reassignment(read_text(reassignment_file))
    with WireClient(bootstrap) as client:
        moving = ongoing(client)
        current, _ = current_assignment(client, {key.topic for key in wanted})
    states = {
        key: status_of(key, replicas, current.get(key), moving)
        for key, replicas in sorted(wanted.items())
    }
    views = [
        {**key._asdict(), "completed": done, "status": text} for key, (done, text) in states.items()
    ]
    sentences = (text for _, text in states.values())
    report(output, views, "Status of partition reassignment:", *sentences)
    if not all(done for done, _ in states.values()):
        raise typer.Exit(1)


@app.command("cancel")
def cancel(
    *,
    reassignment_file: ReassignmentFile,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Cancel the ongoing reassignments in a file; the previous leaders are restored.

    For example: penstock reassign cancel --reassignment-json-file moves.json --dry-run
    """
    from penstock.deploy.admin.reassign.admin import ongoing, reassign
    from penstock.deploy.admin.reassign.plan import parse_reassignment
    from penstock.deploy.clients.wire import WireClient

    wanted = parse_reassignment(read_text(reassignment_file))
    with WireClient(bootstrap) as client:
        problems = {} if dry_run else reassign(client, dict.fromkeys(wanted))
        inactive = (
            wanted.keys() - ongoing(client)
            if dry_run
            else {key for key, (code, _) in problems.items() if code is _NOT_ACTIVE}
        )
    failed = {key: explain(*problem) for key, problem in problems.items() if key not in inactive}
    done = "active" if dry_run else "cancelled"
    results = dict.fromkeys(sorted(wanted), done)
    results |= dict.fromkeys(inactive, "not active") | dict.fromkeys(failed, "failed")
    active = [str(key) for key, result in results.items() if result == done]
    if dry_run:
        sentences = [f"would cancel the reassignment of {', '.join(active) or 'no partition'}"]
    elif active:
        plural = "s" if len(active) > 1 else ""
        names = ",".join(active)
        sentences = [f"Successfully cancelled partition reassignment{plural} for: {names}"]
    elif failed:
        sentences = []
    else:
        sentences = ["None of the specified partition reassignments are active."]
    views = [
        {**key._asdict(), "result": result, "error": failed.get(key)}
        for key, result in results.items()
    ]
    report(output, views, *sentences)
    exit_if_failed("Error cancelling partition reassignment(s)", failed)


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
    controllers: Controllers,
    output: Output = Format.TABLE,
) -> None:
    """Show the steps of a partition's last planned move, and the milliseconds that each step
    took.

    For example: penstock reassign trace orders-0
    """
    from penstock.deploy.admin.reassign.trace import parse_partition, request_move

    key = parse_partition(partition)
    move = request_move(controllers.find(), key)
    if move is None:
        raise ExpectedError(
            f"{key} has no planned move (reassignment, preferred election or draining)"
        )
    rows = [
        (step.number, step.by, step.what, "?" if step.took_ms is None else f"{step.took_ms:.1f}")
        for step in move.steps
    ]
    total = "?" if move.total_ms is None else f"{move.total_ms:.1f}"
    report_table(
        output,
        move,
        f"{key}: broker {move.source} to broker {move.target} in {total} ms",
        ["step", "by", "what", "ms"],
        rows,
    )
