"""Run `penstock demo`: write real data, kill every broker, and verify all data read back."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.deploy.errors import UsageError

_ALL = 336_776


def demo(
    *,
    records: Annotated[int, typer.Option(min=1, help="Number of flights to write.")] = _ALL,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Read from the bucket with Spark while no broker is running."),
    ] = False,
    plot: Annotated[Path, typer.Option(help="With --spark: file for the chart.")] = Path(
        "flights.png"
    ),
    master: Annotated[
        str, typer.Option(help="With --spark: local[N], or spark://HOST:PORT of a cluster.")
    ] = "local[2]",
    archive: Annotated[
        Path | None,
        typer.Option(
            help="With --master: a packed environment (venv-pack) for workers without Penstock."
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            help=(
                "Object store, as for `penstock dev`: moto, file:DIR or a bucket URL; with "
                "--master, workers must be able to access it. The objects are kept."
            )
        ),
    ] = "moto",
) -> None:
    """Write the flights of 2013 to S3 through two brokers, kill both with SIGKILL, and verify the
    records read back from new brokers.

    Starts its own cluster on free ports and stops it again. With --spark, Spark computes the
    average delay of each carrier from the bucket while no broker is running; with --master, on a
    Spark cluster. The last line is `demo: OK N records` if all records were read back.

    For example: penstock demo
    """
    from rich.console import Console

    from penstock.deploy.demo.story import Demo

    if store in {"memory", "memory:"}:
        raise UsageError("--store memory is not allowed: killed brokers would lose it")
    story = Demo(records, Console(), store)
    if spark:
        from penstock.deploy.demo.spark_master import SparkTarget
        from penstock.deploy.demo.spark_story import SparkDemo

        story = SparkDemo(records, Console(), plot, SparkTarget(master, archive).checked(), store)
    elif (master, archive) != ("local[2]", None):
        raise UsageError("--master and --archive need --spark")
    if not story.run():
        raise typer.Exit(1)
