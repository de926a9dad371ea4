"""Draining a WAL store: what keeps it in use, and which brokers need it afterwards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from typer.testing import CliRunner

import penstock.deploy.doctor.wal_move as wal_move
from penstock.base.errors import ExpectedError
from penstock.base.ids import Millis, ObjectId, WalSequence, WalStoreId
from penstock.controller.api.messages import (
    AbandonWalStore,
    DrainWalStore,
    Status,
)
from penstock.controller.managers import commits, nodes
from penstock.controller.managers.objects import destroy_unreferenced, objects_removed
from penstock.controller.managers.wal_stores import (
    abandon_wal_store,
    add_wal_store,
    drain_wal_store,
)
from penstock.controller.metadata.nodes import DrainState
from penstock.controller.metadata.records import WalEnded, WalStoreDrain
from penstock.deploy.cli.app import app
from penstock.deploy.doctor.wal_move import STORE, TopicLeft, assess, is_done, is_undone
from penstock.objectstore.memory import MemoryStore
from penstock.stream.ports import IN_STORE, BrokerIncarnation
from penstock.stream.wal.wal_store import WalStores
from tests.support.managers_cluster import (
    part,
    snapshot_of,
    uploaded,
)
from tests.support.wal_store_cluster import (
    DOWN,
    FIRST,
    NEW,
    OTHER_URL,
    SECOND,
    URL,
    UUID_A,
    UUID_B,
    WITHOUT,
    WalStoreCluster,
    placement,
    slot_in_place,
    wal_registration,
)


class DrainedStore(WalStoreCluster):
    """A cluster with a WAL store that contains the WALs of brokers 1 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.one = self.register(wal_registration(1))
        self.two = self.register(wal_registration(2))

    def drain(self, *, is_undone: bool = False) -> int:
        """Drain the store, and return the remaining count."""
        request = DrainWalStore(store_id=FIRST, uuid=UUID_A, is_undone=is_undone)
        value = self.value_of(drain_wal_store(self.image, request))
        return value.remaining

    def refusal(self, request: DrainWalStore) -> str:
        result = drain_wal_store(self.image, request)
        assert (result.status, result.records) == (Status.INVALID_REQUEST, [])
        return result.detail

    def place(self, writer: BrokerIncarnation, store_id: WalStoreId, uuid: UUID | None) -> Status:
        wal = self.image.nodes.wal(writer)
        assert wal is not None
        request = placement(writer, wal.committed + 1, store_id, uuid)
        result = commits.commit(self.image, request, Millis(0))
        self.apply(result.records)
        return result.status

    @property
    def state(self) -> DrainState:
        return self.image.nodes.drain_of(FIRST)

    def store_of(self, writer: BrokerIncarnation) -> WalStoreId:
        wal = self.image.nodes.wal(writer)
        assert wal is not None
        return wal.store_id

    def finish(self) -> None:
        """Drain the store until nothing uses it."""
        assert self.drain()
        for writer in (self.one, self.two):
            self.place(writer, IN_STORE, None)
        assert self.drain() == 0
        assert self.state == DrainState.ENDED


@pytest.fixture
def cluster() -> DrainedStore:
    return DrainedStore()


def test_brokers_leave_the_store_one_after_the_other(cluster: DrainedStore) -> None:
    assert cluster.image.nodes.next_to_leave() is None
    assert cluster.drain() == 2
    assert (cluster.drain(), cluster.state) == (2, DrainState.DRAINING)
    assert cluster.image.current_wal_store is None
    assert cluster.image.nodes.next_to_leave() == cluster.one
    cluster.place(cluster.one, IN_STORE, None)
    assert cluster.image.nodes.next_to_leave() == cluster.two
    cluster.die(cluster.two)
    assert cluster.image.nodes.next_to_leave() is None
    assert cluster.drain() == 1, "the WAL of a dead broker is left"
    cluster.apply([WalEnded(cluster.two.node_id, cluster.two.node_epoch, WalSequence(0))])
    assert (cluster.drain(), cluster.state) == (0, DrainState.ENDED)
    assert cluster.drain() == 0, "a repeated request is refused"
    assert snapshot_of(cluster.image) == cluster.image


def test_a_drain_survives_snapshots_and_can_be_undone(cluster: DrainedStore) -> None:
    cluster.drain()
    assert snapshot_of(cluster.image) == cluster.image
    assert cluster.drain(is_undone=True) == 0
    assert (cluster.state, cluster.drain(is_undone=True)) == (DrainState.USED, 0)
    assert cluster.image.current_wal_store is not None
    assert snapshot_of(cluster.image) == cluster.image


def test_a_store_stays_in_use_until_its_slots_are_deleted(cluster: DrainedStore) -> None:
    (record,) = cluster.topic("t")
    cluster.open_led(cluster.one)
    slot = slot_in_place(cluster.one, 0, part(record.data_stream_id, 0, 5))
    cluster.die(cluster.one)
    cluster.tick()
    cluster.recover(cluster.two, cluster.one, slot, end=1)
    cluster.open_led(cluster.two)
    cluster.drain()
    cluster.place(cluster.two, IN_STORE, None)
    (store,) = cluster.image.nodes.all_wal_stores()
    found = assess(cluster.image, store)
    assert (found.brokers, found.brokers_outside, found.dead_brokers) == ([], [2], [])
    (left,) = found.topics
    assert (left.topic, left.partition_count) == ("t", 1)
    assert left.size_bytes > 0
    assert cluster.drain() == 1

    (target,) = cluster.prepare(cluster.two)
    cluster.commit(
        cluster.two,
        uploaded(target, part(record.data_stream_id, 5, 6)),
    )
    stream = cluster.image.streams.known(record.data_stream_id)
    cluster.trim(cluster.two, record.data_stream_id, stream.epoch, 5)
    assert cluster.drain() == 1, "a slot that readers may need is left"
    cluster.apply(destroy_unreferenced(cluster.image, Millis(0), 10))
    assert cluster.drain() == 1, "a slot that readers may need is left"
    assert assess(cluster.image, store).unreferenced_count == 1
    state = cluster.image.objects.in_place(slot.key)
    assert state is not None
    cluster.apply(objects_removed(cluster.image, [ObjectId(state.object_id)]))
    assert (cluster.drain(), cluster.state) == (0, DrainState.ENDED)
    assert assess(cluster.image, store).state == "drained"


def test_brokers_need_the_store_until_it_is_drained(cluster: DrainedStore) -> None:
    cluster.drain()
    without = wal_registration(3, **WITHOUT, is_without_wal_store=True)
    other = wal_registration(3, wal_store_id=SECOND, wal_store_uuid=UUID_B)
    for request, status in (
        (without, Status.INVALID_FEATURE_LEVEL),
        (other, Status.INVALID_REQUEST),
    ):
        assert nodes.register_broker(cluster.image, request).status is status
    found = cluster.identity(SECOND, UUID_B)
    assert "are in WAL store 1" in add_wal_store(cluster.image, found, OTHER_URL).detail
    same = cluster.identity()
    assert add_wal_store(cluster.image, same, URL).status is Status.OK
    assert cluster.store_of(cluster.register(wal_registration(3))) == IN_STORE
    cluster.finish()
    for request in (without, other, wal_registration(4)):
        assert cluster.store_of(cluster.register(request)) == IN_STORE
    cluster.die(cluster.register(without))
    assert "use another bucket" in add_wal_store(cluster.image, found, URL).detail
    for number, left in ((1, "1, 2, 4"), (2, "2, 4"), (4, "4")):
        refused = add_wal_store(cluster.image, found, OTHER_URL)
        assert f"brokers {left} are not configured" in refused.detail
        cluster.register(wal_registration(number, incarnation_id=UUID(int=100 + number), **NEW))
    assert "has ended" in add_wal_store(cluster.image, same, OTHER_URL).detail
    cluster.run(add_wal_store(cluster.image, found, OTHER_URL))
    assert cluster.image.current_wal_store == found
    assert snapshot_of(cluster.image) == cluster.image


def test_brokers_with_a_drained_store_are_rejected_once_there_is_a_new_one(
    cluster: DrainedStore,
) -> None:
    cluster.drain()
    cluster.finish()
    before = cluster.register(wal_registration(3, wal_store_url=URL, **DOWN))
    assert cluster.store_of(before) == IN_STORE
    cluster.die(before)
    for number in (1, 2):
        cluster.register(wal_registration(number, incarnation_id=UUID(int=100 + number), **NEW))
    found = cluster.identity(SECOND, UUID_B)
    cluster.run(add_wal_store(cluster.image, found, OTHER_URL))
    for wrong in (
        wal_registration(4, wal_store_url=URL, **DOWN),
        wal_registration(4, wal_store_url=URL),
        wal_registration(
            4, wal_store_url="file:/empty", wal_store_id=IN_STORE, wal_store_uuid=None
        ),
    ):
        result = nodes.register_broker(cluster.image, wrong)
        assert (result.status, result.records) == (Status.INVALID_REQUEST, [])
        assert f"in WAL store 2 at {OTHER_URL}" in result.detail
    unknown = wal_registration(4, wal_store_url="file:/unmounted", **DOWN)
    assert cluster.store_of(cluster.register(unknown)) == IN_STORE


def test_brokers_may_return_to_a_store_until_it_is_drained(cluster: DrainedStore) -> None:
    """Otherwise a broker that missed the response to its return would continue in `store` while its
    WAL is in the WAL store.
    """
    cluster.drain()
    cluster.place(cluster.one, IN_STORE, None)
    assert cluster.place(cluster.one, FIRST, UUID_A) is Status.OK
    assert cluster.image.nodes.next_to_leave() == cluster.one
    assert not cluster.image.nodes.is_wal_store_ended(FIRST)
    cluster.finish()
    assert cluster.place(cluster.one, FIRST, UUID_A) is Status.INVALID_REQUEST
    assert cluster.image.nodes.is_wal_store_ended(FIRST)


def test_requests_for_another_or_a_drained_store_are_rejected(cluster: DrainedStore) -> None:
    for store_id, uuid in ((SECOND, UUID_A), (FIRST, UUID_B)):
        detail = cluster.refusal(DrainWalStore(store_id=store_id, uuid=uuid))
        assert f"known are: 1 with UUID {UUID_A}" in detail
    request = DrainWalStore(store_id=FIRST, uuid=UUID_A)
    cluster.finish()
    undone = msgspec.structs.replace(request, is_undone=True)
    assert "was drained: configure another bucket" in cluster.refusal(undone)
    abandon = AbandonWalStore(store_id=FIRST, uuid=UUID_A)
    assert "was drained" in abandon_wal_store(cluster.image, abandon, 0.0).detail
    for store_id, state in ((SECOND, 1), (FIRST, 1)):
        with pytest.raises(Exception, match="to be drained does not exist, has ended"):
            cluster.apply([WalStoreDrain(store_id, state)])


def test_a_store_can_be_abandoned_while_it_is_being_drained(cluster: DrainedStore) -> None:
    cluster.drain()
    for writer in (cluster.one, cluster.two):
        cluster.die(writer)
    abandon = AbandonWalStore(store_id=FIRST, uuid=UUID_A)
    cluster.run(abandon_wal_store(cluster.image, abandon, 0.0))
    assert (cluster.state, cluster.image.nodes.is_wal_store_lost(FIRST)) == (DrainState.USED, True)
    assert "was abandoned" in cluster.refusal(DrainWalStore(store_id=FIRST, uuid=UUID_A))
    (store,) = cluster.image.nodes.all_wal_stores()
    assert assess(cluster.image, store).state == "abandoned"
    assert snapshot_of(cluster.image) == cluster.image


async def test_the_janitor_does_not_need_a_drained_store(
    cluster: DrainedStore, tmp_path: Path
) -> None:
    cluster.finish()
    for writer in (cluster.one, cluster.two):
        cluster.die(writer)
        cluster.apply([WalEnded(writer.node_id, writer.node_epoch, WalSequence(1))])
    janitor = cluster.janitor(WalStores(MemoryStore()), tmp_path)
    for _ in range(2):
        await janitor.clean_ended_wals()
        cluster.now_s += 1e6
    assert await janitor.remove_old_wals() == 2


def commands(
    cluster: DrainedStore, monkeypatch: pytest.MonkeyPatch, *, before: Callable[[int], None]
) -> Callable[..., tuple[int, str]]:
    """Return a function that runs `penstock wal move` with a client of this cluster.

    `before` is called before each request with the number of earlier requests.
    """
    counts = iter(range(1_000))

    class Client:
        async def start(self) -> None: ...
        async def refresh(self) -> None: ...
        async def close(self) -> None: ...

        @property
        def image(self) -> Any:
            return cluster.image

        async def drain_wal_store(self, request: DrainWalStore) -> Any:
            before(next(counts))
            return cluster.run(drain_wal_store(cluster.image, request))

    def client(_: str) -> Client:
        return Client()

    monkeypatch.setattr(wal_move, "LiveMetadata", client)
    monkeypatch.setattr(wal_move, "connect", client)

    def move(*arguments: str) -> tuple[int, str]:
        command = ["wal", "move", "--controller", "c:1", *arguments]
        done = CliRunner().invoke(app, command)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.exit_code, done.output

    return move


def test_a_move_fails_until_the_store_is_drained(
    cluster: DrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[int]()
    move = commands(cluster, monkeypatch, before=sent.append)
    code, output = move("--to", STORE, "--wait", "0")
    assert (code, "in it: 1, 2" in output) == (1, True)
    assert move("--to", STORE, "--wait", "0", "-o", "json")[0] == 1
    cluster.finish()
    code, output = move("--status")
    assert (code, "UUID" in output, "remove wal.store" in output) == (0, True, False)
    count = len(sent)
    code, output = move("--to", STORE)
    assert (code, "remove wal.store" in output) == (0, True)
    assert len(sent) > count + 1, "the end is reported before the backup contains it"


def test_a_move_does_not_override_a_later_undo(
    cluster: DrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undo_later(count: int) -> None:
        """Undo the move while the command repeats its request, and then move both WALs."""
        if count == 1:
            cluster.drain(is_undone=True)

    cluster.drain()
    for writer in (cluster.one, cluster.two):
        cluster.place(writer, IN_STORE, None)
    cluster.drain(is_undone=True)
    code, output = commands(cluster, monkeypatch, before=undo_later)("--to", STORE)
    assert (code, "no longer being drained" in output) == (1, True)
    assert cluster.state == DrainState.USED


def test_valid_targets_are_the_store_and_the_wal_store(cluster: DrainedStore) -> None:
    (store,) = cluster.image.nodes.all_wal_stores()
    assert (is_undone(store, STORE), is_undone(store, URL)) == (False, True)
    with pytest.raises(ExpectedError, match="choose --to store or --to s3://wal"):
        is_undone(store, OTHER_URL)
    assert is_done(assess(cluster.image, store), URL)
    assert not is_done(assess(cluster.image, store), STORE)
    cluster.drain()
    assert not is_done(assess(cluster.image, store), URL)
    cluster.place(cluster.one, IN_STORE, None)
    cluster.drain(is_undone=True)
    assert not is_done(assess(cluster.image, store), URL), "broker 1 has not returned"
    assert assess(cluster.image, store).topics == list[TopicLeft]()
