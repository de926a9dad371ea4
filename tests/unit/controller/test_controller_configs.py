"""Configs of groups, brokers and client metrics in the metadata: accepted values, limits and
snapshots.
"""

from collections.abc import Mapping

import pytest

from penstock.controller.api.messages import (
    AlterConfigs,
    ConfigChange,
    ConfiguredResource,
    Status,
)
from penstock.controller.managers import config_rules, configs
from penstock.controller.metadata import client_metrics
from penstock.controller.metadata.configs import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.records import ConfigRecord
from tests.support.managers_cluster import ManagersCluster, snapshot_of

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.fixture
def cluster() -> ManagersCluster:
    cluster = ManagersCluster()
    cluster.broker(1)
    return cluster


def alter(
    cluster: ManagersCluster,
    kind: int,
    resource: str,
    values: Mapping[str, str | None],
    *,
    is_replaced: bool = False,
    records: int | None = None,
) -> set[Status]:
    changes = [
        ConfigChange(resource_type=kind, resource_name=resource, name=name, value=value)
        for name, value in values.items()
    ]
    replaced = [ConfiguredResource(resource_type=kind, resource_name=resource)]
    request = AlterConfigs(changes=changes, replaced=replaced if is_replaced else [])
    response = cluster.value_of(configs.alter_configs(cluster.image, request), records=records)
    assert len(response.items) == len(changes) + is_replaced
    assert all(item.detail for item in response.items if item.status is not Status.OK)
    return {item.status for item in response.items}


def test_group_configs_are_set_replaced_and_removed(cluster: ManagersCluster) -> None:
    values: dict[str, str | None] = {SESSION: " 50000 ", HEARTBEAT: "6000"}
    assert alter(cluster, GROUP_RESOURCE, "g", values, records=2) == {Status.OK}
    assert alter(cluster, GROUP_RESOURCE, "g", values, records=0) == {Status.OK}
    image = cluster.image.configs
    assert image.group("g") == {SESSION: "50000", HEARTBEAT: "6000"}
    assert image.names(GROUP_RESOURCE) == ["g"]
    assert image.names(TOPIC_RESOURCE) == []
    assert alter(cluster, GROUP_RESOURCE, "g", {SESSION: "51000"}, is_replaced=True) == {Status.OK}
    assert image.group("g") == {SESSION: "51000"}
    assert alter(cluster, GROUP_RESOURCE, "g", {SESSION: None, "none": None}) == {Status.OK}
    assert image.names(GROUP_RESOURCE) == []


@pytest.mark.parametrize(
    ("group", "values", "status"),
    [
        ("", {SESSION: "50000"}, Status.INVALID_REQUEST),
        ("g" * 32_768, {SESSION: "50000"}, Status.INVALID_REQUEST),
        ("g", {SESSION: "50000", "no.such": "1"}, Status.INVALID_CONFIG),
        ("g", {SESSION: "50000", HEARTBEAT: "50000"}, Status.INVALID_CONFIG),
        ("g", {SESSION: "soon"}, Status.INVALID_CONFIG),
        ("g", {SESSION: "0"}, Status.INVALID_CONFIG),
        ("g", {SESSION: "1" * 5_000}, Status.INVALID_CONFIG),
        ("g", {"share.auto.offset.reset": "never"}, Status.INVALID_CONFIG),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_invalid_group_config_changes_nothing(
    cluster: ManagersCluster, group: str, values: Mapping[str, str | None], status: Status
) -> None:
    assert alter(cluster, GROUP_RESOURCE, group, values, records=0) == {status}


def test_the_number_of_groups_with_configs_is_limited(
    cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_rules, "GROUPS_MAX", 2)
    for group in ("a", "b"):
        assert alter(cluster, GROUP_RESOURCE, group, {SESSION: "50000"}) == {Status.OK}
    assert alter(cluster, GROUP_RESOURCE, "c", {SESSION: "50000"}) == {Status.INVALID_CONFIG}
    assert alter(cluster, GROUP_RESOURCE, "a", {SESSION: "51000"}) == {Status.OK}
    assert alter(cluster, GROUP_RESOURCE, "a", {SESSION: None}) == {Status.OK}
    assert alter(cluster, GROUP_RESOURCE, "c", {SESSION: "50000"}) == {Status.OK}
    assert alter(cluster, GROUP_RESOURCE, "b", {SESSION: None}) == {Status.OK}
    both = [
        ConfigChange(resource_type=GROUP_RESOURCE, resource_name=group, name=SESSION, value="50000")
        for group in ("d", "e")
    ]
    found = configs.alter_configs(cluster.image, AlterConfigs(changes=both)).value
    assert found is not None
    assert [item.status for item in found.items] == [Status.OK, Status.INVALID_CONFIG]


INTERVAL, METRICS, MATCH = "interval.ms", "metrics", "match"


def test_a_client_metrics_subscription_is_stored_in_the_format_of_kafka(
    cluster: ManagersCluster,
) -> None:
    values: dict[str, str | None] = {
        INTERVAL: " +2000 ",
        METRICS: " a , b,a ",
        MATCH: "client_id = x.* ,client_software_name=\\p{L}+=",
        "none": None,
    }
    assert alter(cluster, CLIENT_METRICS_RESOURCE, "s", values) == {Status.OK}
    image = cluster.image.configs
    assert image.client_metrics("s") == {
        INTERVAL: "2000",
        METRICS: "a,b",
        MATCH: "client_id = x.*,client_software_name=\\p{L}+=",
    }
    empty: dict[str, str | None] = {METRICS: " ", MATCH: ""}
    assert alter(cluster, CLIENT_METRICS_RESOURCE, "s", empty, is_replaced=True) == {Status.OK}
    assert image.client_metrics("s") == {METRICS: "", MATCH: ""}
    assert alter(cluster, CLIENT_METRICS_RESOURCE, "s", {}, is_replaced=True) == {Status.OK}
    assert image.names(CLIENT_METRICS_RESOURCE) == []


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("", {INTERVAL: "1000"}, Status.INVALID_REQUEST),
        ("x" * 32_768, {INTERVAL: "1000"}, Status.INVALID_REQUEST),
        ("s", {"nope": "1"}, Status.INVALID_REQUEST),
        *(("s", {INTERVAL: value}, Status.INVALID_REQUEST) for value in ("99", "3600001", "-1")),
        *(("s", {INTERVAL: value}, Status.INVALID_CONFIG) for value in ("x", "", "9" * 10, "1e3")),
        *(("s", {METRICS: value}, Status.INVALID_CONFIG) for value in (",", "a,,b", "m" * 4_097)),
        *(
            ("s", {MATCH: value}, Status.INVALID_CONFIG)
            for value in ("client_id", "client_id=", "=x", "nope=1", "client_id=[", "client_id==")
        ),
        *(
            ("s", {MATCH: value}, Status.INVALID_CONFIG)
            for value in ("client_id=a=b", "client_id=x,", "client_id=" + "(" * 4_000)
        ),
        ("s", {INTERVAL: "1000", METRICS: ","}, Status.INVALID_CONFIG),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_subscription_changes_nothing(
    cluster: ManagersCluster, name: str, values: dict[str, str | None], status: Status
) -> None:
    assert alter(cluster, CLIENT_METRICS_RESOURCE, name, values, records=0) == {status}


def test_the_number_of_subscriptions_is_limited(
    cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_metrics, "SUBSCRIPTIONS_MAX", 1)
    for name, status in (("a", Status.OK), ("b", Status.INVALID_CONFIG), ("a", Status.OK)):
        assert alter(cluster, CLIENT_METRICS_RESOURCE, name, {INTERVAL: "1000"}) == {status}


def test_broker_configs_apply_to_one_broker_or_to_all(cluster: ManagersCluster) -> None:
    for name in ("1", ""):
        values: dict[str, str | None] = {"log.cleaner.backoff.ms": "5"}
        assert alter(cluster, BROKER_RESOURCE, name, values, records=1) == {Status.OK}
        assert cluster.image.configs.broker(name) == {"log.cleaner.backoff.ms": "5"}
    assert alter(cluster, BROKER_RESOURCE, "1", {}, is_replaced=True, records=1) == {Status.OK}
    assert cluster.image.configs.broker("1") == {}
    assert cluster.image.configs.names(BROKER_RESOURCE) == [""]


@pytest.mark.parametrize("name", ["2", "-1", "01", "x", "1" * 40])
def test_configs_of_unregistered_brokers_are_rejected(cluster: ManagersCluster, name: str) -> None:
    values = {"log.cleaner.backoff.ms": "5"}
    assert alter(cluster, BROKER_RESOURCE, name, values, records=0) == {Status.INVALID_REQUEST}


def test_broker_configs_are_limited(
    cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("a b", "1"), ("", "1"), ("a" * 256, "1"), ("a", "1" * 4_097)):
        assert alter(cluster, BROKER_RESOURCE, "1", {name: value}) == {Status.INVALID_CONFIG}
    monkeypatch.setattr(config_rules, "BROKER_CONFIGS_MAX", 2)
    three: dict[str, str | None] = dict.fromkeys("abc", "1")
    assert alter(cluster, BROKER_RESOURCE, "1", three, records=0) == {Status.INVALID_CONFIG}


def test_snapshots_and_deltas_contain_the_configs(cluster: ManagersCluster) -> None:
    records = [
        ConfigRecord(GROUP_RESOURCE, "g", SESSION, "50000"),
        ConfigRecord(BROKER_RESOURCE, "", "log.cleaner.backoff.ms", "5"),
    ]
    delta = MetadataDelta()
    for record in records:
        delta.note(record)
    assert delta.configs == {(GROUP_RESOURCE, "g"), (BROKER_RESOURCE, "")}
    cluster.apply(records)
    restored = snapshot_of(cluster.image)
    assert sorted(restored.configs.items()) == sorted(cluster.image.configs.items())
    assert restored.configs.group("g") == {SESSION: "50000"}
