"""Report brokers that do not respond, after a command has printed the responses of the others."""

from collections.abc import Mapping

import typer

from penstock.deploy.errors import print_error


def exit_if_incomplete(problems: Mapping[int, str], missing: str) -> None:
    """Exit with code 1 if there are problems. problems: problems by broker. missing: a description
    of the missing output.
    """
    for problem in problems.values():
        print_error(f"{problem}; {missing}")
    if problems:
        raise typer.Exit(1)
