"""`penstock demo`: the main job on real data, checked."""

from pathlib import Path
from typing import Annotated

import typer

_ALL = 336_776


def demo(
    *,
    records: Annotated[int, typer.Option(min=1, help="How many of the flights.")] = _ALL,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark", help="Read with Spark, straight from the bucket, while no broker lives."
        ),
    ] = False,
    plot: Annotated[Path, typer.Option(help="With --spark: where to draw the answer.")] = Path(
        "flights.png"
    ),
) -> None:
    """Write the flights of 2013 through two brokers into S3, kill -9 both, read everything back
    from fresh ones, compare.

    Starts a cluster of its own on free ports and takes it down again. With --spark the brokers stay
    dead: Spark computes the average delay of each carrier from the bucket alone. The last line is
    `demo: OK N records` if all came back.
    """
    from rich.console import Console

    from deploy.demo.story import Demo

    story = Demo(records, Console())
    if spark:
        from deploy.demo.spark_story import SparkDemo

        story = SparkDemo(records, Console(), plot)
    if not story.run():
        raise typer.Exit(1)
