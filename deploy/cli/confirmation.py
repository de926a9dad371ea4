"""Ask for confirmation of destructive actions."""

import sys

import typer

from penstock.base.printable import printable
from penstock.deploy.output import Format


def confirm(question: str, output: Format = Format.TABLE, *, yes: bool) -> None:
    """Ask on a terminal, and exit if the user declines.

    Does not prompt without a terminal, with --yes, or with a machine-readable format.
    """
    if not yes and output is Format.TABLE and sys.stdin.isatty():
        typer.confirm(printable(question), abort=True, err=True)
