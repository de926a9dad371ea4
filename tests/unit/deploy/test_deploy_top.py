"""`penstock top` computes rates from two samples."""

import pytest

from penstock.controller.api.load_messages import StoreRequests
from penstock.deploy.admin.cost import Prices, store_cost, usd_month
from penstock.deploy.admin.views import ClusterView
from penstock.deploy.top.view import Stored, view_top

CLUSTER = ClusterView("c", "127.0.0.1:1", 1, 1, 1, 1, [], [])
STORED = {"a": Stored(2, 2, 100), "b": Stored(3, 1, 50), "new": Stored(1, 1, 0)}


def test_rates_are_differences_and_the_busiest_topic_is_first() -> None:
    view = view_top(CLUSTER, STORED, {"a": 100, "b": 90, "new": 5}, {"a": 100, "b": 50}, 2.0)
    assert [
        (topic.name, topic.records, topic.records_s, topic.without_leader) for topic in view.topics
    ] == [
        ("b", 90, 20.0, 2),
        ("a", 100, 0.0, 0),
        ("new", 5, None, 0),
    ]
    assert view.stored_bytes == 150


def test_there_are_no_rates_before_a_second_look_nor_for_a_topic_made_anew() -> None:
    assert {topic.records_s for topic in view_top(CLUSTER, STORED, {"a": 1}, None, 0.0).topics} == {
        None
    }
    (again,) = view_top(CLUSTER, {"a": Stored(1, 1, 0)}, {"a": 3}, {"a": 100}, 1.0).topics
    assert again.records_s is None


def test_cost_is_put_and_list_at_one_price_and_get_at_another() -> None:
    requests = StoreRequests(
        put_s=10.0, list_s=2.0, get_s=100.0, delete_s=1_000.0, failed_s=1.0, written_bytes_s=5e6
    )
    assert usd_month(requests, Prices()) == pytest.approx(2_628_000 * (12 * 5e-6 + 100 * 4e-7))
    assert usd_month(requests, Prices(put_usd_per_1000=0.0, get_usd_per_1000=1.0)) == pytest.approx(
        262_800.0
    )


def test_the_total_is_of_brokers_that_report_and_of_none_it_is_unknown() -> None:
    one = StoreRequests(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    total = store_cost([one, None, one], 2_000_000_000, Prices())
    assert total.requests == StoreRequests(2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
    assert total.storage_usd_month == pytest.approx(0.046)
    assert total.requests_per_hour == pytest.approx(3_600 * 20)
    assert total.requests_usd_hour == pytest.approx(3_600 * (6 * 5e-6 + 6 * 4e-7))
    nobody = store_cost([None], 0, Prices())
    assert (nobody.requests, nobody.requests_usd_month) == (None, None)
    assert (nobody.requests_per_hour, nobody.requests_usd_hour) == (None, None)
