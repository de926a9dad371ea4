"""Run `penstock elect`: elect the preferred leaders of partitions, with the file format and output
of `kafka-leader-election`.
"""

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.options import BOOTSTRAP, Bootstrap
from deploy.errors import KafkaFailed, UsageError
from deploy.output import say


def elect(
    *,
    preferred: Annotated[
        bool,
        typer.Option("--preferred", help="Elect the first candidate of each partition."),
    ] = False,
    path: Annotated[
        Path | None,
        typer.Option(
            "--path-to-json-file",
            help='{"partitions": [{"topic": "foo", "partition": 0}]}; default: all partitions.',
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Elect preferred leaders.

    For example: penstock elect --preferred
    """
    if not preferred:
        raise UsageError(
            "--preferred is required: it is the only type of election; partitions without a"
            " leader get one automatically"
        )
    from broker.wire.error_codes import ErrorCode
    from deploy.clients.wire import WireClient
    from deploy.reassign.admin import elect_preferred
    from deploy.reassign.plan import parse_partitions

    try:
        keys = None if path is None else parse_partitions(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    with WireClient(bootstrap) as client:
        elected, problems = elect_preferred(client, keys)
    needless = [
        str(key)
        for key, (code, _) in sorted(problems.items())
        if code is ErrorCode.ELECTION_NOT_NEEDED
    ]
    failed = [
        f"{key}: {text}"
        for key, (code, text) in sorted(problems.items())
        if code is not ErrorCode.ELECTION_NOT_NEEDED
    ]
    if elected:
        say(
            "Successfully completed leader election (PREFERRED) for partitions"
            f" {', '.join(map(str, sorted(elected)))}"
        )
    if needless or not (elected or failed):
        say(
            f"Valid replica already elected for partitions {', '.join(needless)}".rstrip()
            if needless
            else "Valid replica already elected for all partitions"
        )
    if failed:
        raise KafkaFailed("Error completing leader election (PREFERRED) for:\n" + "\n".join(failed))
