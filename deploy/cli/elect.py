"""Run `penstock elect`: elect the preferred leaders of partitions, with the file format and output
of `kafka-leader-election`.
"""

from pathlib import Path
from typing import Annotated

import typer

from penstock.deploy.cli.incomplete import exit_if_failed
from penstock.deploy.cli.input_files import read_text
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report


def elect(
    *,
    preferred: Annotated[
        bool,
        typer.Option("--preferred", help="Required: the only type of election."),
    ] = False,
    path: Annotated[
        Path | None,
        typer.Option(
            "--path-to-json-file",
            help='{"partitions": [{"topic": "foo", "partition": 0}]}; default: all partitions.',
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Elect the preferred leaders: the first broker in each replica list.

    For example: penstock elect --preferred
    """
    if not preferred:
        raise UsageError(
            "--preferred is required: it is the only supported election type; partitions "
            "without a leader get one automatically"
        )
    from penstock.deploy.admin.reassign.admin import elect_preferred
    from penstock.deploy.admin.reassign.plan import parse_partitions
    from penstock.deploy.clients.wire import WireClient
    from penstock.protocol.error_codes import ErrorCode, explain

    keys = None if path is None else parse_partitions(read_text(path))
    with WireClient(bootstrap) as client:
        elected, problems = elect_preferred(client, keys)
    is_needless = {
        key: code is ErrorCode.ELECTION_NOT_NEEDED for key, (code, _) in problems.items()
    }
    needless = [str(key) for key in sorted(problems) if is_needless[key]]
    failed = {key: explain(*problems[key]) for key in sorted(problems) if not is_needless[key]}
    results = dict.fromkeys(elected, "elected") | {
        key: "not needed" if is_needless[key] else "failed" for key in problems
    }
    views = [
        {**key._asdict(), "result": results[key], "error": failed.get(key)}
        for key in sorted(results)
    ]
    sentences: list[str] = []
    if elected:
        names = ", ".join(map(str, sorted(elected)))
        sentences.append(
            f"Successfully completed leader election (PREFERRED) for partitions {names}"
        )
    if needless or not (elected or failed):
        which = f"partitions {', '.join(needless)}" if needless else "all partitions"
        sentences.append(f"Valid replica already elected for {which}")
    report(output, views, *sentences)
    exit_if_failed("Error completing leader election (PREFERRED) for", failed)
