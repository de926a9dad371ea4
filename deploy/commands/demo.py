"""`penstock demo`: the main job on real data, checked."""

from typing import Annotated

import typer

_ALL = 336_776


def demo(*, records: Annotated[int, typer.Option(min=1, help="How many of the flights.")] = _ALL) -> None:
    """Write the flights of 2013 through two brokers into S3, kill -9 both, read everything back from fresh ones, compare.

    Starts a cluster of its own on free ports and takes it down again. The last line is `demo: OK N records` if all came back.
    """
    from rich.console import Console

    from deploy.demo.story import Demo

    if not Demo(records, Console()).run():
        raise typer.Exit(1)
