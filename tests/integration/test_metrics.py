"""Metrics of real processes: the output of every node parses, counters follow client requests, a
killed broker is reported as fenced, and all metrics and labels of dashboards and rules exist.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.metrics_core import Metric

from penstock.deploy.node.metrics import table
from tests.support.metered_cluster import MeteredCluster, Samples, value
from tests.support.promql import TARGET_LABELS, queries, rules
from tests.support.waiting import PATIENCE_S

RECORDS = 300
VALUE = bytes(1_000)
BROKERS = ("broker 0", "broker 1")
CONTROLLERS = ("controller 0", "controller 1", "controller 2")


@dataclass
class Story:
    """Metrics of all nodes before clients connect, after they have finished, and after broker 1 is
    killed.
    """

    before: dict[str, Samples]
    after: dict[str, Samples]
    end: dict[str, Samples]
    families: dict[str, list[Metric]]
    killed_leads: int


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with MeteredCluster(
        tmp_path_factory.mktemp("metered"), brokers=len(BROKERS), controllers=len(CONTROLLERS)
    ) as cluster:
        before: dict[str, Samples] = {}
        after: dict[str, Samples] = {}

        def is_settled(samples: dict[str, Samples]) -> bool:
            """Return whether the controllers have a leader, with which both brokers have their
            session, and all of them have the metadata.
            """
            samples.update({name: cluster.scrape(name) for name in cluster.ports})
            reported = [samples[name] for name in CONTROLLERS]
            return (
                sum(value(it, "penstock_controller_leader") for it in reported) == 1
                and sum(value(it, "penstock_controller_sessions") for it in reported)
                == len(BROKERS)
                and all(value(it, "penstock_controller_leader_known") for it in reported)
                and all(
                    value(it, "penstock_cluster_brokers", {"state": "alive"}) == len(BROKERS)
                    for it in reported
                )
            )

        cluster.until(lambda: is_settled(before), "the controllers have the brokers")
        use(cluster.bootstrap)

        def is_logged() -> bool:
            """Return whether the metrics include the requests. A node may cache its output for 250
            ms, longer than the clients take.
            """
            return is_settled(after) and all(
                sum(value(after[name], metric) - value(before[name], metric) for name in nodes)
                >= least
                for nodes, metric, least in (
                    (BROKERS, "penstock_broker_produced_records_total", RECORDS),
                    (CONTROLLERS, "penstock_controller_requests_total", 1),
                )
            )

        cluster.until(is_logged, "the nodes report the requests of the clients")
        cluster.kill(BROKERS[1])

        def is_over() -> bool:
            reported = [cluster.scrape(name) for name in CONTROLLERS]
            fenced = all(
                value(it, "penstock_cluster_broker_fenced", {"broker": "1"}) for it in reported
            )
            return fenced and not any(
                value(it, "penstock_cluster_leaderless_partitions") for it in reported
            )

        cluster.until(is_over, "all controllers have the fenced broker and new leaders")
        living = [name for name in cluster.ports if name != BROKERS[1]]
        yield Story(
            before,
            after,
            {name: cluster.scrape(name) for name in living},
            {name: cluster.families(name) for name in living},
            int(value(after[BROKERS[1]], "penstock_broker_partitions", {"state": "serving"})),
        )


def use(bootstrap: str) -> None:
    """Produce to four partitions and consume all records as a group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result(PATIENCE_S)
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(RECORDS):
        producer.produce("orders", VALUE, partition=number % 4, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    seen = 0
    while seen < RECORDS:
        messages = consumer.consume(RECORDS, PATIENCE_S)
        assert messages, f"{seen} of {RECORDS}"
        assert all(message.error() is None for message in messages)
        seen += len(messages)
    consumer.close()


def grown(story: Story, metric: str, **labels: str) -> float:
    return sum(
        value(story.after[name], metric, labels) - value(story.before[name], metric, labels)
        for name in story.after
    )


def test_every_node_reports_exactly_the_metrics_of_its_role(story: Story) -> None:
    for name, families in story.families.items():
        role = "broker" if name.startswith("broker") else "controller"
        known = {metric.name.removesuffix("_total"): metric for metric in table.of_role(role)}
        reported = {
            family.name: family for family in families if not family.name.startswith("process_")
        }
        assert set(reported) == set(known), name
        for family in reported.values():
            metric = known[family.name]
            assert family.type == metric.kind
            assert family.documentation == metric.text
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(metric.labels), sample
            assert family.samples or metric.labels, f"{family.name} has no value"


def test_counters_grow_with_client_requests(story: Story) -> None:
    assert grown(story, "penstock_broker_produced_records_total") >= RECORDS
    assert grown(story, "penstock_broker_produced_bytes_total") >= RECORDS * len(VALUE)
    assert grown(story, "penstock_broker_fetched_records_total") >= RECORDS
    assert grown(story, "penstock_broker_fetched_bytes_total") >= RECORDS * len(VALUE)
    assert grown(story, "penstock_broker_received_bytes_total") > RECORDS * len(VALUE)
    assert grown(story, "penstock_broker_sent_bytes_total") > RECORDS * len(VALUE)
    assert grown(story, "penstock_wal_written_bytes_total") > RECORDS * len(VALUE)
    produces = grown(story, "penstock_broker_requests_total", api="Produce")
    assert produces >= 4
    assert grown(story, "penstock_broker_request_seconds_count", api="Produce") == produces
    assert grown(story, "penstock_broker_request_seconds_sum", api="Produce") > 0
    slots = grown(story, "penstock_wal_put_seconds_count")
    assert slots >= 1
    assert (
        grown(story, "penstock_store_requests_total", operation="put_if_absent", outcome="ok")
        >= slots
    )
    assert grown(story, "penstock_broker_partitions_opened_total") >= 4
    assert sum(value(story.after[name], "penstock_broker_groups") for name in BROKERS) == 1
    assert (
        grown(
            story,
            "penstock_broker_request_errors_total",
            api="JoinGroup",
            error="MEMBER_ID_REQUIRED",
        )
        >= 1
    )
    assert grown(story, "penstock_controller_requests_total") > 0
    assert grown(story, "penstock_controller_fsync_seconds_count") > 0


def test_histogram_buckets_are_monotonic_and_match_the_count(story: Story) -> None:
    for samples in story.end.values():
        for (name, labels), count in samples.items():
            if name.endswith("_count"):
                buckets = {
                    dict(has)["le"]: found
                    for (bucket, has), found in samples.items()
                    if bucket == name.removesuffix("_count") + "_bucket" and labels <= has
                }
                ordered = [buckets[bound] for bound in sorted(buckets, key=float)]
                assert ordered == sorted(ordered)
                assert buckets["+Inf"] == count


def test_controllers_agree_on_the_cluster_and_one_is_leader(story: Story) -> None:
    assert sum(value(story.after[name], "penstock_controller_leader") for name in CONTROLLERS) == 1
    for name in CONTROLLERS:
        assert value(story.after[name], "penstock_controller_leader_known") == 1
        assert value(story.before[name], "penstock_cluster_brokers", {"state": "alive"}) == len(
            BROKERS
        )
    assert sum(
        value(story.after[name], "penstock_controller_sessions") for name in CONTROLLERS
    ) == len(BROKERS)


def test_killed_broker_is_reported_as_fenced_and_its_partitions_are_served(
    story: Story,
) -> None:
    assert story.killed_leads > 0
    for name in CONTROLLERS:
        assert value(story.end[name], "penstock_cluster_brokers", {"state": "fenced"}) == 1
        assert value(story.end[name], "penstock_cluster_broker_fenced", {"broker": "0"}) == 0
    assert value(story.end[BROKERS[0]], "penstock_broker_session") == 1
    partitions = max(value(story.end[name], "penstock_cluster_partitions") for name in CONTROLLERS)
    assert partitions > story.killed_leads


def test_metrics_and_labels_of_dashboards_and_rules_are_reported(story: Story) -> None:
    reported: dict[str, set[str]] = {}
    for samples in story.end.values():
        for name, labels in samples:
            reported.setdefault(name, set()).update(label for label, _ in labels)
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    seen = 0
    for query in queries():
        has: set[str] = set(TARGET_LABELS)
        for name, matched in query.selectors():
            assert name in reported or name == "up" or name in recorded, (
                f"{query.where}: no node reports {name}"
            )
            labels = reported.get(name, set()) | TARGET_LABELS
            assert matched <= labels, f"{query.where}: {name} has no {matched - labels}"
            has |= labels
            seen += 1
        assert query.grouped() <= has, f"{query.where}: nothing has {query.grouped() - has}"
    assert seen > 100
