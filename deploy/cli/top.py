"""Run `penstock top`: show live statistics of nodes and topics."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import ExpectedError
from penstock.deploy.cli.options import Controllers, Output
from penstock.deploy.output import Format, report_with, rich_console


def top(
    *,
    interval: Annotated[
        float,
        typer.Option(
            help="Seconds between two refreshes; brokers report every 2 s.", min=0.1, max=60.0
        ),
    ] = 2.0,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print one measurement and exit; the default without a terminal."
        ),
    ] = False,
    controllers: Controllers,
    put_price: Annotated[
        float | None, typer.Option(help="USD per 1,000 PUT or LIST requests.", min=0.0)
    ] = None,
    get_price: Annotated[
        float | None, typer.Option(help="USD per 1,000 GET requests.", min=0.0)
    ] = None,
    storage_price: Annotated[
        float | None, typer.Option(help="USD per GB and month.", min=0.0)
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show throughput and latency of brokers, store requests and their cost, and the busiest
    topics.

    The default prices are the list prices of the cloud whose store the profile or the local cluster
    uses, otherwise those of S3 Standard in us-east-1. Requests have no price if requests to the WAL
    store are priced differently, as in S3 Express One Zone. Press Ctrl-C to exit.

    For example: penstock top --once --output json
    """
    from rich.live import Live

    from penstock.deploy.admin.cost import Prices, prices_of
    from penstock.deploy.top.page import page
    from penstock.deploy.top.watch import Watch

    prices = prices_of(_store(controllers.state_file))
    if any(price is not None for price in (put_price, get_price, storage_price)):
        prices = Prices(
            put_usd_per_1000=prices.put_usd_per_1000 if put_price is None else put_price,
            get_usd_per_1000=prices.get_usd_per_1000 if get_price is None else get_price,
            storage_usd_per_gb_month=(
                prices.storage_usd_per_gb_month if storage_price is None else storage_price
            ),
            source=f"given with options, otherwise {prices.source}",
            price_list=prices.price_list if put_price is None or get_price is None else "",
        )
    with Watch(controllers.find(), prices) as watch:
        if once or output is not Format.TABLE or not sys.stdout.isatty():
            watch.measure()
            watch.wait(interval)
            view = watch.measure()
            report_with(output, view, lambda: rich_console().print(page(view)))
            return
        with Live(page(watch.measure()), screen=True, auto_refresh=False) as live:
            while True:
                watch.wait(interval)
                live.update(page(watch.measure()), refresh=True)


def _store(state_file: Path | None) -> str:
    """Return the URL of the store, or "" if it is unknown."""
    from penstock.deploy.clients.target import find_store

    try:
        return find_store(state_file)
    except ExpectedError:
        return ""
