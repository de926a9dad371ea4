"""`penstock top` computes rates from two samples."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from penstock.base.ids import NodeEpoch, NodeId, WalStoreId
from penstock.controller.api.load_messages import StoreRequests
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import NodeRecord, WalStoreRecord
from penstock.deploy.admin.cost import Prices, prices_of, store_cost, usd_month
from penstock.deploy.admin.views import ClusterView, view_cluster
from penstock.deploy.top.counts import RecordCounts
from penstock.deploy.top.offsets import Measured
from penstock.deploy.top.page import page
from penstock.deploy.top.view import Stored, view_top, wal_store_urls_of
from penstock.deploy.top.watch import NO_RESPONSE, with_silent

CLUSTER = ClusterView("c", "127.0.0.1:1", 1, 1, 1, 1, [], [])
STORED = {
    "a": Stored(2, 2, 100, None, {0: 10}),
    "b": Stored(3, 1, 50),
    "new": Stored(1, 1, 0),
}


def counted(counts: RecordCounts, now_s: float, **ends: dict[int, int]) -> dict[str, Any]:
    """Return records and rates by topic after a measurement."""
    found = counts.add(STORED, [Measured(now_s, ends)], now_s)
    return {name: (count.records, count.records_s) for name, count in found.items()}


def test_rates_compare_two_measurements_and_the_busiest_topic_is_first() -> None:
    counts = RecordCounts()
    assert counted(counts, 0.0, a={0: 100, 1: 0}, b={0: 50, 1: 0, 2: 0}) == {
        "a": (90, None),
        "b": (50, None),
        "new": (None, None),
    }
    assert counts.records_s is None
    ends = {"a": {0: 100, 1: 0}, "b": {0: 90, 1: 0, 2: 0}, "new": {0: 5}}
    view = view_top(CLUSTER, STORED, counts.add(STORED, [Measured(2.0, ends)], 2.0))
    assert [
        (topic.name, topic.records, topic.records_s, topic.without_leader) for topic in view.topics
    ] == [("b", 90, 20.0, 2), ("a", 90, 0.0, 0), ("new", 5, None, 0)]
    assert (view.stored_bytes, counts.records_s) == (150, 20.0)


def test_a_broker_that_does_not_respond_is_reported() -> None:
    image = MetadataImage()
    image.apply_all(
        NodeRecord(NodeId(it), NodeEpoch(it), UUID(int=it), f"b{it}", 9092, "", None, fenced=False)
        for it in (0, 1)
    )
    cluster = with_silent(view_cluster(image, "127.0.0.1:1", {}), {"b1:9092"})
    assert [node.note for node in cluster.nodes] == ["", NO_RESPONSE]


@pytest.mark.parametrize("width", [200, 80, 40])
def test_a_narrow_terminal_shows_only_complete_columns(width: int) -> None:
    """Previously, columns were cut to `(as cli…` and `requ…`."""
    view = view_top(CLUSTER, STORED, RecordCounts().add(STORED, [], 0.0))
    console = Console(width=width)
    with console.capture() as capture:
        console.print(page(view))
    text = capture.get()
    assert "…" not in text
    assert ("too narrow for" in text) == (width < 200)
    assert "without leader" in text.replace("\n", " ")


def test_deleted_records_are_not_counted() -> None:
    stored = {"a": Stored(2, 2, 0, None, {0: 1_154, 1: 7})}
    found = RecordCounts().add(stored, [Measured(0.0, {"a": {0: 1_154, 1: 9}})], 0.0)
    assert found["a"].records == 2


def test_a_temporarily_missing_leader_changes_neither_counts_nor_rates() -> None:
    """When it returns, only the records written in between are counted, not all of its records."""
    counts = RecordCounts()
    counted(counts, 0.0, a={0: 16_010, 1: 0})
    counted(counts, 2.0, a={0: 16_024, 1: 0})
    for now_s in (4.0, 6.0, 8.0, 10.0):
        found = counts.add(STORED, [Measured(now_s, {"a": {1: 0}})], now_s)["a"]
        assert (found.records, found.records_s, found.age_s) == (16_014, 7.0, now_s - 2.0)
        assert counts.records_s == (7.0 if now_s <= 6.0 else None)
    assert counted(counts, 12.0, a={0: 16_094, 1: 0})["a"] == (16_084, 7.0)
    assert counts.records_s == 7.0


def test_the_rate_of_a_leader_that_never_responded_is_unknown() -> None:
    counts = RecordCounts()
    for now_s in (0.0, 2.0):
        assert counted(counts, now_s, a={1: 0})["a"] == (None, None)
    assert counted(counts, 4.0, a={0: 5, 1: 0})["a"] == (0, None)
    assert counted(counts, 6.0, a={0: 15, 1: 0})["a"] == (5, 5.0)


def test_a_late_response_has_the_time_of_its_request() -> None:
    """It is not treated as new, and does not replace the values of the next leader."""
    counts = RecordCounts()
    counted(counts, 0.0, new={0: 10})
    late = counts.add(STORED, [Measured(1.0, {"new": {0: 20}})], 61.0)["new"]
    assert (late.records, late.records_s, late.age_s) == (20, 10.0, 60.0)
    counted(counts, 63.0, new={0: 40})
    found = counts.add(STORED, [Measured(62.0, {"new": {0: 30}})], 64.0)["new"]
    assert (found.records, found.age_s) == (40, 1.0)


def test_values_of_brokers_that_all_became_silent_remain_with_their_age() -> None:
    counts = RecordCounts()
    counted(counts, 0.0, new={0: 10})
    counted(counts, 2.0, new={0: 30})
    found = counts.add(STORED, [], 62.0)["new"]
    assert (found.records, found.records_s, found.age_s) == (30, 10.0, 60.0)
    assert counts.records_s is None


def test_a_recreated_topic_starts_without_a_rate() -> None:
    counts = RecordCounts()
    for topic_id, end, rate in (
        (UUID(int=1), 1, None),
        (UUID(int=1), 3, 1.0),
        (UUID(int=2), 9, None),
    ):
        stored = {"a": Stored(1, 1, 0, topic_id)}
        (found,) = counts.add(stored, [Measured(float(end), {"a": {0: end}})], float(end)).values()
        assert (found.records, found.records_s) == (end, rate)


def test_put_and_list_requests_have_one_price_and_get_requests_another() -> None:
    requests = StoreRequests(
        put_s=10.0, list_s=2.0, get_s=100.0, delete_s=1_000.0, failed_s=1.0, written_bytes_s=5e6
    )
    assert usd_month(requests, Prices()) == pytest.approx(2_628_000 * (12 * 5e-6 + 100 * 4e-7))
    assert usd_month(requests, Prices(put_usd_per_1000=0.0, get_usd_per_1000=1.0)) == pytest.approx(
        262_800.0
    )


def test_each_cloud_has_its_own_prices() -> None:
    found = [prices_of(url) for url in ("s3://b", "gs://b", "az://a/c", "file:d", "")]
    assert [prices.storage_usd_per_gb_month for prices in found] == [
        0.023,
        0.020,
        0.018,
        0.023,
        0.023,
    ]
    assert [prices.source for prices in found[1:4]] == [
        "Google Cloud Storage Standard in us-east1",
        "Azure Blob Storage Hot LRS in East US",
        "S3 Standard in us-east-1",
    ]


EXPRESS = "s3://wals--use1-az4--x-s3?region=us-east-1"


@pytest.mark.parametrize(
    ("store", "wal_store", "is_priced"),
    [
        ("s3://b", "s3://wals", True),
        ("s3://b", EXPRESS, False),
        ("", EXPRESS, False),
        ("s3://b", "file:/mnt/wals", False),
        ("file:/b", "file:/mnt/wals", True),
        ("gs://b", "gs://wals", True),
        ("gs://b", "s3://wals", False),
    ],
)
def test_requests_have_no_price_if_the_wal_store_has_other_prices(
    store: str, wal_store: str, is_priced: bool
) -> None:
    """Brokers report the requests to both stores together."""
    image = MetadataImage()
    image.apply_all([WalStoreRecord(WalStoreId(1), UUID(int=1), wal_store)])
    requests = StoreRequests(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    node = NodeRecord(NodeId(0), NodeEpoch(0), UUID(int=0), "b", 9092, "", None, fenced=False)
    image.apply_all([node])
    cluster = view_cluster(image, "127.0.0.1:1", {})
    cluster = replace(cluster, nodes=[replace(node, store=requests) for node in cluster.nodes])
    urls = wal_store_urls_of(image)
    view = view_top(cluster, STORED, {}, prices=prices_of(store), wal_store_urls=urls)
    assert (view.cost.requests_usd_month is not None) == is_priced
    assert view.cost.unpriced == ("" if is_priced else wal_store)
    console = Console(width=300)
    with console.capture() as capture:
        console.print(page(view))
    assert ("no price" in capture.get()) != is_priced
    given = replace(prices_of(store), put_usd_per_1000=0.001, price_list="")
    view = view_top(cluster, STORED, {}, prices=given, wal_store_urls=urls)
    assert view.cost.requests_usd_month is not None


def test_totals_include_only_brokers_that_report() -> None:
    one = StoreRequests(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    total = store_cost([one, None, one], 2_000_000_000, Prices())
    assert total.requests == StoreRequests(2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
    assert total.storage_usd_month == pytest.approx(0.046)
    assert total.requests_per_hour == pytest.approx(3_600 * 20)
    assert total.requests_usd_hour == pytest.approx(3_600 * (6 * 5e-6 + 6 * 4e-7))
    nobody = store_cost([None], 0, Prices())
    assert (nobody.requests, nobody.requests_usd_month) == (None, None)
    assert (nobody.requests_per_hour, nobody.requests_usd_hour) == (None, None)
