"""Ask before something is destroyed."""

import sys

import typer

from penstock.base.printable import printable
from penstock.deploy.output import Format


def confirm(question: str, output: Format = Format.TABLE, *, yes: bool) -> None:
    """Ask on a terminal, and end the command if the answer is no.

    Without a terminal, with --yes and with a format for programs, nothing is asked.
    """
    if not yes and output is Format.TABLE and sys.stdin.isatty():
        typer.confirm(printable(question), abort=True, err=True)
