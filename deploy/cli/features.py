"""Run `penstock features`: list, upgrade and downgrade the levels of features."""

from typing import Annotated

import typer

from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, Output
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report, report_table

app = typer.Typer(help="List, upgrade and downgrade the levels of features.", no_args_is_help=True)

_LEVEL_MAX = 32_767

Levels = Annotated[
    list[str],
    typer.Argument(
        metavar="FEATURE=LEVEL", help="Feature and level, such as transaction.version=2."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Validate the levels without changing anything.")
]


@app.command("list")
def list_features(*, bootstrap: Bootstrap = BOOTSTRAP, output: Output = Format.TABLE) -> None:
    """List features with their supported and finalized levels.

    For example: penstock features list
    """
    from penstock.deploy.clients.features import listed_features
    from penstock.deploy.clients.wire import WireClient

    with WireClient(bootstrap) as client:
        found = listed_features(client)
    rows = [(item.name, f"{item.min_level} to {item.max_level}", str(item.level)) for item in found]
    report_table(output, found, "", ("feature", "supported", "level"), rows)


@app.command("upgrade")
def upgrade(
    levels: Levels,
    *,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Raise levels that every broker and controller supports.

    For example: penstock features upgrade transaction.version=2 --dry-run
    """
    _set(levels, bootstrap, output, is_downgrade=False, dry_run=dry_run)


@app.command("downgrade")
def downgrade(
    levels: Levels,
    *,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Lower levels; 0 disables a feature.

    For example: penstock features downgrade share.version=0 --dry-run
    """
    _set(levels, bootstrap, output, is_downgrade=True, dry_run=dry_run)


def _set(
    levels: list[str], bootstrap: str, output: Format, *, is_downgrade: bool, dry_run: bool
) -> None:
    from penstock.deploy.clients.features import set_levels
    from penstock.deploy.clients.wire import WireClient

    wanted = _parsed(levels)
    with WireClient(bootstrap) as client:
        set_levels(client, wanted, is_downgrade=is_downgrade, validate_only=dry_run)
    views = [{"name": name, "level": level, "dry_run": dry_run} for name, level in wanted.items()]
    verb = "can be" if dry_run else "is"
    report(output, views, *(f"{name} {verb} {level}" for name, level in wanted.items()))


def _parsed(levels: list[str]) -> dict[str, int]:
    """Parse FEATURE=LEVEL. Raises UsageError."""
    wanted: dict[str, int] = {}
    for text in levels:
        name, equals, level = text.partition("=")
        if not name or not equals or not level.isdecimal() or int(level) > _LEVEL_MAX:
            raise UsageError(
                f"{text!r} is not FEATURE=LEVEL with a level from 0 to {_LEVEL_MAX:,}, for example"
                " transaction.version=2"
            )
        if name in wanted:
            raise UsageError(f"{name} is given twice")
        wanted[name] = int(level)
    return wanted
