"""Run `penstock demo`: write real data, kill every broker, and check everything read back."""

from pathlib import Path
from typing import Annotated

import typer

_ALL = 336_776


def demo(
    *,
    records: Annotated[int, typer.Option(min=1, help="Number of flights to write.")] = _ALL,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Read with Spark from the bucket, while no broker runs."),
    ] = False,
    plot: Annotated[Path, typer.Option(help="With --spark: file for the chart.")] = Path(
        "flights.png"
    ),
) -> None:
    """Write the flights of 2013 through two brokers into S3, kill both with SIGKILL, and compare
    everything read back from new brokers.

    Starts its own cluster on free ports and stops it again. With --spark no broker runs while Spark
    computes the average delay of each carrier from the bucket. The last line is `demo: OK N
    records` if all records came back.

    For example: penstock demo
    """
    from rich.console import Console

    from deploy.demo.story import Demo

    story = Demo(records, Console())
    if spark:
        from deploy.demo.spark_story import SparkDemo

        story = SparkDemo(records, Console(), plot)
    if not story.run():
        raise typer.Exit(1)
