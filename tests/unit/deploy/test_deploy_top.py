"""What `penstock top` makes of two looks."""

from deploy.top.view import Stored, view_top
from deploy.views import ClusterView

CLUSTER = ClusterView("c", "127.0.0.1:1", 1, 1, 1, 1, [], [])
STORED = {"a": Stored(2, 2, 100), "b": Stored(3, 1, 50), "new": Stored(1, 1, 0)}


def test_rates_are_differences_and_the_busiest_topic_is_first() -> None:
    view = view_top(CLUSTER, STORED, {"a": 100, "b": 90, "new": 5}, {"a": 100, "b": 50}, 2.0)
    assert [(topic.name, topic.records, topic.records_s, topic.without_leader) for topic in view.topics] == [
        ("b", 90, 20.0, 2),
        ("a", 100, 0.0, 0),
        ("new", 5, None, 0),
    ]
    assert view.stored_bytes == 150


def test_there_are_no_rates_before_a_second_look_nor_for_a_topic_made_anew() -> None:
    assert {topic.records_s for topic in view_top(CLUSTER, STORED, {"a": 1}, None, 0.0).topics} == {None}
    (again,) = view_top(CLUSTER, {"a": Stored(1, 1, 0)}, {"a": 3}, {"a": 100}, 1.0).topics
    assert again.records_s is None
