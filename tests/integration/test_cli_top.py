"""`penstock top` against a real cluster: load reports of brokers contain their store requests, and
the command computes their price.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore
from tests.support.cli import Cli
from tests.support.cluster import READY_S, Cluster


def document(printed: str) -> dict[str, Any]:
    """Return the JSON document between the log lines of an in-process cluster."""
    lines = printed.splitlines()
    found: dict[str, Any] = json.loads("\n".join(lines[lines.index("{") : lines.index("}") + 1]))
    return found


async def test_store_requests_and_their_cost_are_shown_per_broker_and_in_total(
    tmp_path: Path,
) -> None:
    store = MeteredStore(MemoryStore())
    async with Cluster(tmp_path, brokers=2, store=store, load_report_interval_ms=50) as cluster:
        cli = Cli(cluster, tmp_path)

        async def top(*arguments: str) -> dict[str, Any]:
            return document(
                await cli.run("top", "--once", "--interval", "0.1", "--json", *arguments)
            )

        async with asyncio.timeout(READY_S):
            view = await top()
            while any(
                not node["store"] or not node["store"][0] for node in view["cluster"]["nodes"]
            ):
                view = await top()
        stores = [node["store"] for node in view["cluster"]["nodes"]]
        assert view["cost"]["requests"] == pytest.approx(
            [sum(rates) for rates in zip(*stores, strict=True)]
        )
        assert view["cost"]["requests_usd_month"] > 0
        assert {node["version"] for node in view["cluster"]["nodes"]} != {""}
        assert (await top("--put-price", "0", "--get-price", "0"))["cost"][
            "requests_usd_month"
        ] == 0
        page = await cli.run("top", "--once", "--interval", "0.1", "--put-price", "0.0125")
        assert "all brokers" in page
        assert "USD 0.0125 per 1,000 PUT and LIST" in page


async def test_broker_without_store_request_counts_shows_a_dash_not_zero(tmp_path: Path) -> None:
    async with Cluster(tmp_path, load_report_interval_ms=50) as cluster:
        view = document(
            await Cli(cluster, tmp_path).run("top", "--once", "--interval", "0.1", "--json")
        )
        assert (
            view["cluster"]["nodes"][0]["store"],
            view["cost"]["requests"],
            view["cost"]["requests_usd_month"],
        ) == (None, None, None)
