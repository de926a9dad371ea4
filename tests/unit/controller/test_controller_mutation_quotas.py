"""The quota of partition creations and deletions: what counts, which requests are rejected, and
which are throttled. The responses are those of Kafka 4.2 (tests/interop/test_interop_quotas.py).
"""

from pathlib import Path

import pytest

from penstock.controller.active import mutation_quotas
from penstock.controller.active.mutation_quotas import MutationQuotas
from penstock.controller.api import messages as m
from penstock.controller.api import quota_messages as qm
from penstock.controller.api.client import ControllerClient
from penstock.controller.managers import deleted_topics, topics
from penstock.controller.metadata.records import QuotaRecord, QuotaTarget
from tests.support.controller_quorum import Quorum
from tests.support.managers_cluster import ManagersCluster

OK, REFUSED = m.Status.OK, m.Status.THROTTLING_QUOTA_EXCEEDED
WINDOW_MS = 11_000
MUTATIONS = "controller_mutation_rate"


class Changes:
    """Client requests with a quota of one partition per second and a burst of eleven."""

    def __init__(self) -> None:
        self.cluster = ManagersCluster()
        self.cluster.broker(1)
        self.now_s = 100.0
        self.quotas = MutationQuotas(WINDOW_MS, lambda: self.now_s)
        self.set(QuotaTarget("client-id", None))

    def set(self, *entity: QuotaTarget, rate: float | None = 1.0) -> None:
        self.cluster.apply([QuotaRecord(entity, MUTATIONS, rate)])

    def create(
        self, *new: m.NewTopic, client: m.QuotaClient | None, validate_only: bool = False
    ) -> tuple[list[m.Status], int]:
        """Return the status of each topic, and the throttle time of the client."""
        response = self.cluster.value_of(
            self.quotas.apply(
                self.cluster.image,
                client,
                lambda count: self.cluster.create_topics(
                    new, validate_only=validate_only, count=count
                ),
            )
        )
        return [topic.status for topic in response.topics], response.throttle_ms

    def grow(self, name: str, total: int, client: m.QuotaClient) -> tuple[list[m.Status], int]:
        request = m.CreatePartitions(topics=[m.NewPartitions(name=name, total=total)])
        response = self.cluster.value_of(
            self.quotas.apply(
                self.cluster.image,
                client,
                lambda count: topics.create_partitions(
                    self.cluster.image, request, live=self.cluster.live, count=count
                ),
            )
        )
        return [item.status for item in response.items], response.throttle_ms

    def delete(self, *names: str, client: m.QuotaClient) -> tuple[list[m.Status], int]:
        ids = [self.cluster.partitions(name)[0].topic_id for name in names]
        response = self.cluster.value_of(
            self.quotas.apply(
                self.cluster.image,
                client,
                lambda count: deleted_topics.delete_topics(
                    self.cluster.image,
                    m.DeleteTopics(topic_ids=ids),
                    self.cluster.now_ms,
                    grace_ms=0,
                    count=count,
                ),
            )
        )
        return [item.status for item in response.items], response.throttle_ms


def client(name: str = "c", user: str = "u", *, is_strict: bool = True) -> m.QuotaClient:
    return m.QuotaClient(user=user, client_id=name, is_strict=is_strict)


def ten(name: str, **configs: str) -> m.NewTopic:
    return m.NewTopic(name=name, partitions=10, configs=dict(configs))


@pytest.fixture
def changes() -> Changes:
    return Changes()


def test_topics_above_the_quota_are_rejected_and_the_others_created(changes: Changes) -> None:
    response = changes.create(ten("a"), ten("b"), ten("c"), client=client())
    assert response == ([OK, OK, REFUSED], 9_000)
    image = changes.cluster.image
    assert [topic.name for topic in image.topics] == ["a", "b"]
    changes.now_s += 8.9
    assert changes.create(ten("c"), client=client()) == ([REFUSED], 100)
    changes.now_s += 0.1
    assert changes.create(ten("c"), client=client()) == ([OK], 0)


def test_requests_of_older_clients_succeed_and_are_throttled(changes: Changes) -> None:
    older = client(is_strict=False)
    assert changes.create(ten("a"), ten("b"), ten("c"), client=older) == ([OK] * 3, 19_000)
    assert changes.create(ten("d"), client=client()) == ([REFUSED], 19_000)


def test_rejected_requests_are_not_counted(changes: Changes) -> None:
    changes.cluster.topic("there", 10)
    statuses, _ = changes.create(
        ten("there"), ten("in valid"), ten("wrong", **{"no.such": "1"}), client=client()
    )
    assert not {OK, REFUSED} & set(statuses)
    assert changes.grow("there", 5, client()) == ([m.Status.INVALID_PARTITIONS], 0)
    assert changes.create(ten("a"), ten("b"), client=client()) == ([OK, OK], 0)
    assert changes.grow("there", 5, client()) == ([m.Status.INVALID_PARTITIONS], 0)


def test_validate_only_requests_count_as_in_kafka(changes: Changes) -> None:
    topics = ten("a"), ten("b")
    assert changes.create(*topics, client=client(), validate_only=True) == ([OK, OK], 0)
    assert changes.create(ten("a"), client=client()) == ([REFUSED], 9_000)


def test_added_and_deleted_partitions_are_counted(changes: Changes) -> None:
    changes.cluster.topic("a", 1)
    changes.cluster.topic("b", 20)
    assert changes.grow("a", 31, client()) == ([OK], 0)
    assert changes.grow("a", 32, client()) == ([REFUSED], 19_000)
    assert changes.delete("b", "a", client=client("other")) == ([OK, REFUSED], 9_000)
    assert len(changes.cluster.partitions("a")) == 31


def test_a_quota_of_a_user_is_shared_by_its_clients(changes: Changes) -> None:
    changes.set(QuotaTarget("client-id", None), rate=None)
    changes.set(QuotaTarget("user", "u"))
    assert changes.create(ten("a"), ten("b"), client=client("one")) == ([OK, OK], 0)
    assert changes.create(ten("c"), client=client("two")) == ([REFUSED], 9_000)
    assert changes.create(ten("c"), client=client(user="other")) == ([OK], 0)


def test_no_state_is_kept_for_clients_without_a_quota(changes: Changes) -> None:
    changes.set(QuotaTarget("client-id", None), rate=None)
    assert changes.create(ten("a"), ten("b"), ten("c"), client=client()) == ([OK] * 3, 0)
    assert changes.create(ten("d"), ten("e"), ten("f"), client=None) == ([OK] * 3, 0)
    assert len(changes.quotas) == 0


def test_the_least_recently_used_bucket_is_evicted(
    changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutation_quotas, "BUCKETS_MAX", 2)
    for at, name in enumerate("abac"):
        changes.create(m.NewTopic(name=f"t{at}", partitions=20), client=client(name))
        assert len(changes.quotas) <= 2
    assert changes.create(ten("kept"), client=client("a"))[0] == [REFUSED]
    assert changes.create(ten("forgotten"), client=client("b"))[0] == [OK]


async def test_buckets_are_full_after_a_controller_failover(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    try:
        await quorum.start()
        broker = await quorum.broker()
        entity, change = (QuotaTarget("client-id", "c"),), qm.QuotaChange(key=MUTATIONS, value=0.01)
        await broker.client.alter_quotas(
            qm.AlterQuotas(alterations=[qm.QuotaAlteration(entity=entity, changes=[change])])
        )
        assert await create(broker.client, "a") == (OK, 0)
        status, throttle_ms = await create(broker.client, "b")
        assert (status, throttle_ms > 60_000) == (REFUSED, True)
        old = await quorum.leader()
        await quorum.stop_one(old)
        assert await create(broker.client, "b") == (OK, 0)
        assert await quorum.leader() != old
        assert (await create(broker.client, "c"))[0] == REFUSED
    finally:
        await quorum.stop()


async def create(caller: ControllerClient, name: str) -> tuple[m.Status, int]:
    request = m.CreateTopics(topics=[m.NewTopic(name=name, partitions=1)], client=client())
    response = await caller.create_topics(request)
    return response.topics[0].status, response.throttle_ms
