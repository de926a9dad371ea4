"""Ask for confirmation of destructive actions."""

import sys

import typer

from penstock.base.printable import printable
from penstock.deploy.errors import UsageError


def confirm(question: str, *, yes: bool) -> None:
    """Exit if the user declines. yes: whether to skip the question. Raises UsageError if standard
    input is not a terminal.
    """
    if not yes and not confirmed(question):
        raise typer.Abort


def confirmed(question: str) -> bool:
    """Ask on the terminal, and return the response. Raises UsageError if standard input is not a
    terminal, because scripts must confirm with --yes.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Confirm with --yes: there is no terminal for a prompt")
    return typer.confirm(printable(question), err=True)
