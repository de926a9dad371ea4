"""Mirrors of topics that were deleted and created again, at the source or at the target. Progress
and group offsets of the earlier topic must not apply to the new one.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from penstock.deploy.clients.security import PLAINTEXT
from penstock.deploy.mirror import admin
from penstock.deploy.mirror.cluster import ClusterAddress
from penstock.deploy.mirror.plan import OffsetKind, Selection
from penstock.deploy.mirror.session import MirrorOptions, MirrorSession
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.mirrors import commit_offsets, committed, records_of
from tests.support.waiting import wait_until

KEY = "again", 0


@pytest.mark.parametrize("kind", OffsetKind)
async def test_a_recreated_topic_is_copied_from_its_start(
    tmp_path: Path, kind: OffsetKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is OffsetKind.TRANSLATED:  # as with a target that is Apache Kafka
        monkeypatch.setattr(admin, "has_mirror_topics", lambda _: False)
    async with AsyncExitStack() as stack:
        addresses: list[str] = []
        for name in ("source", "target"):
            (tmp_path / name).mkdir()
            cluster = await stack.enter_async_context(Cluster(tmp_path / name))
            addresses.append(cluster.bootstrap)
        await asyncio.to_thread(mirror, *addresses, kind)


def mirror(source: str, target: str, kind: OffsetKind) -> None:
    create_topic(source, KEY[0], 1)
    produce(source, KEY[0], [b"old"] * 50, [0])
    commit_offsets(source, "g", {KEY: 40})
    options = MirrorOptions(selection=Selection(topics=KEY[0]), copies_acls=False)
    addresses = ClusterAddress(source, PLAINTEXT, is_source=True), ClusterAddress(target, PLAINTEXT)
    with MirrorSession(*addresses, options, print) as session:

        def copy(count: int) -> None:
            session.refresh()
            wait_until(lambda: session.states[KEY].position >= count)
            session.sync_groups()

        copy(50)
        assert session.states[KEY].mode is kind
        assert committed(target, "g") == {KEY: 40}

        # A topic with more records at the source, before the next plan.
        recreate(source, [b"new"] * 80)
        commit_offsets(source, "g", {KEY: 5})
        session.sync_groups()
        assert committed(target, "g") == {KEY: 40}
        session.refresh()
        assert "created again" in session.plan.refused[KEY[0]]
        session.sync_groups()
        assert committed(target, "g") == {KEY: 40}

        # The advice to delete the topic at the target.
        delete(target)
        copy(80)
        assert values(target) == [b"new"] * 80
        assert committed(target, "g") == {KEY: 5}

        # The source is idle while an empty topic replaces the one at the target.
        recreate(target, [])
        commit_offsets(source, "g", {KEY: 70})
        session.sync_groups()
        assert committed(target, "g") == {}
        copy(80)
        assert values(target) == [b"new"] * 80
        assert committed(target, "g") == {KEY: 70}


def recreate(address: str, records: list[bytes]) -> None:
    delete(address)
    create_topic(address, KEY[0], 1)
    if records:
        produce(address, KEY[0], records, [0])


def delete(address: str) -> None:
    client = AdminClient({"bootstrap.servers": address})
    client.delete_topics([KEY[0]])[KEY[0]].result(TIMEOUT_S)


def values(address: str) -> list[bytes | None]:
    return [record.value for record in records_of(address, KEY[0], 1)[0]]
