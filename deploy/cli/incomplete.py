"""Report missing output and failed items after a command has printed the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from penstock.deploy.errors import print_error
from penstock.protocol.client.errors import KafkaFailed


def exit_if_incomplete(problems: Mapping[int, str], missing: str) -> None:
    """Exit with code 1 if there are problems. problems: problems by broker. missing: a description
    of the missing output.
    """
    exit_after([f"{problem}; {missing}" for problem in problems.values()])


def exit_after(errors: Sequence[str]) -> None:
    """Print errors; exit with code 1 if there are any."""
    for error in errors:
        print_error(error)
    if errors:
        raise typer.Exit(1)


def exit_if_failed(title: str, failed: Mapping[Any, str]) -> None:
    """Raise KafkaFailed with one line for each failed partition, if any. failed: errors by
    partition.
    """
    if failed:
        lines = (f"{partition}: {text}" for partition, text in sorted(failed.items()))
        raise KafkaFailed("\n".join((f"{title}:", *lines)))
