"""Read the options of `penstock groups reset-offsets` that select the new offsets."""

import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deploy.errors import UsageError

if TYPE_CHECKING:
    from penstock.deploy.admin.groups.reset import Goal


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetGoal:
    """The option that determines the new offsets: exactly one must be set."""

    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="The earliest offset of the log.")
    ] = False
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end of the log.")] = False
    to_current: Annotated[
        bool,
        typer.Option(
            "--to-current", help="The committed offset, or the end of the log if there is none."
        ),
    ] = False
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", help="This offset.", show_default=False)
    ] = None
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", help="The committed offset plus this number.", show_default=False
        ),
    ] = None
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="The first record at or after this ISO time (UTC if it has no offset).",
            show_default=False,
        ),
    ] = None
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration",
            metavar="DURATION",
            help="The first record of the last PT1H30M, P7D, 90m or 7d.",
            show_default=False,
        ),
    ] = None
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            help="CSV file with TOPIC,PARTITION,OFFSET, as printed by --output csv.",
            show_default=False,
        ),
    ] = None


def goal_of(options: ResetGoal) -> "Goal":
    """Return the goal. Raises UsageError unless exactly one option is given."""
    from penstock.deploy.admin.groups import reset

    time_ms: int | None = None
    if options.to_datetime is not None:
        time_ms = reset.parse_time(options.to_datetime)
    if options.by_duration is not None:
        now_ms = time.time_ns() // 1_000_000
        time_ms = max(0, now_ms - reset.parse_duration(options.by_duration))
    given = [value for value in astuple(options) if value is not None and value is not False]
    if len(given) != 1:
        raise UsageError(
            "specify one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, "
            "--to-datetime, --by-duration and --from-file"
        )
    return reset.Goal(
        earliest=options.to_earliest,
        latest=options.to_latest,
        current=options.to_current,
        offset=options.to_offset,
        shift=options.shift_by,
        time_ms=time_ms,
        exact=None if options.from_file is None else reset.read_offsets(options.from_file),
    )
