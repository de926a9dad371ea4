"""Three controllers over real sockets: one is leader, the others follow, and any of
them may stop.
"""

import asyncio
from pathlib import Path
from random import Random

import pytest

from penstock.controller.api import messages as m
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import InvalidConfig, NotLeader, QuorumClosed
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.backup.snapshots import LoadedSnapshot, SnapshotStore
from penstock.controller.config import ControllerConfig
from penstock.controller.managers.result import Result
from penstock.controller.metadata.records import KeyValueRecord
from penstock.controller.raft.replicated_log import RaftQuorum
from penstock.objectstore.faults import FaultyStore
from penstock.objectstore.memory import MemoryStore
from tests.support.controller_quorum import Quorum, get, put
from tests.support.waiting import PATIENCE_S, until


async def test_every_controller_receives_the_records_and_redirects_clients_to_the_leader(
    quorum: Quorum,
) -> None:
    leader = await quorum.leader()
    for address in quorum.addresses:
        client = ControllerClient([address])
        await put(client, address)
        assert client.address == quorum.addresses[leader]
        await client.close()
    for number, address in enumerate(quorum.addresses):
        client = ControllerClient([address])
        status = await client.describe()
        assert (status.controller_id, status.active, status.leader) == (
            number,
            number == leader,
            quorum.addresses[leader],
        )
        observer = MetadataFollower(client)
        await observer.start(PATIENCE_S)
        await until(
            lambda seen=observer: all(
                seen.image.kv.get(key) is not None for key in quorum.addresses
            )
        )
        await observer.stop()
        await client.close()


async def test_a_leader_that_stops_is_replaced_and_brokers_keep_their_sessions(
    quorum: Quorum,
) -> None:
    brokers = [await quorum.broker() for _ in range(2)]
    lost: list[bool] = []
    for broker in brokers:
        broker.follower.on_session(lambda has_session: lost.append(has_session))
    client = quorum.client()
    for round_number in range(3):
        leader = await quorum.leader()
        await put(client, f"before-{round_number}")
        await quorum.stop_one(leader)
        await put(client, f"after-{round_number}")
        assert await quorum.leader() != leader
        for key in (f"before-{round_number}", f"after-{round_number}"):
            assert await get(client, key) == b"v"
        for broker in brokers:
            await until(
                lambda seen=broker.follower, key=f"after-{round_number}": (
                    seen.image.kv.get(key) is not None
                )
            )
        await quorum.start_one(leader)
    assert not lost, "no broker stopped writing"


async def test_a_partitioned_leader_commits_nothing_and_returns_nothing(quorum: Quorum) -> None:
    client = quorum.client()
    await put(client, "before")
    old = await quorum.leader()
    runtime = quorum.servers[old].runtime
    assert runtime is not None
    quorum.cut_off(old)
    proposal = asyncio.ensure_future(
        runtime.submit("Lost", lambda _image, _now: Result([KeyValueRecord("lost", b"x")]))
    )
    await asyncio.sleep(0)
    with pytest.raises((NotLeader, QuorumClosed)):
        await proposal
    new = await quorum.leader()
    assert new != old
    await put(client, "after")
    assert not quorum.servers[old].is_leading
    quorum.heal()
    for server in quorum.servers.values():
        reached = quorum.servers[new].quorum
        own = server.quorum
        assert reached is not None
        assert own is not None
        await until(lambda a=reached, b=own: a.committed_offset == b.committed_offset)
    assert await get(client, "lost") is None
    assert await get(client, "after") == b"v"


async def test_a_deposed_leader_serves_no_image_until_it_has_reloaded_it(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = quorum.client()
    await put(client, "before")
    old = await quorum.leader()
    server, loading = quorum.servers[old], asyncio.Event()
    runtime = server.runtime
    assert runtime is not None
    load_newest = SnapshotStore.load_newest

    async def load_when_allowed(self: SnapshotStore) -> LoadedSnapshot | None:
        await loading.wait()
        return await load_newest(self)

    monkeypatch.setattr(SnapshotStore, "load_newest", load_when_allowed)
    quorum.drop_messages(old)
    lost = asyncio.ensure_future(
        runtime.submit("Lost", lambda _image, _now: Result([KeyValueRecord("lost", b"x")]))
    )
    await until(lambda: runtime.has_uncommitted)
    quorum.cut_off(old)
    with pytest.raises((NotLeader, QuorumClosed)):
        await lost
    await until(lambda: not server.is_leading)
    # An observer that lags behind the start of the log needs a snapshot of the image.
    assert server.quorum is not None
    monkeypatch.setattr(RaftQuorum, "first_offset", property(lambda self: self.committed_offset))
    observer_client = ControllerClient([quorum.addresses[old]])
    observer = MetadataFollower(observer_client)
    with pytest.raises(TimeoutError):
        await observer.start(1.0)
    assert observer.image.kv.get("lost") is None
    reason = "the image is being loaded again, because this controller has led"
    await until(lambda: server.why_not_following() == [reason])
    loading.set()
    await until(lambda: observer.image.kv.get("before") is not None)
    assert observer.image.kv.get("lost") is None
    quorum.heal()
    await observer.stop()
    await observer_client.close()


async def take_snapshot(quorum: Quorum) -> None:
    """Let the leader take a snapshot; on a busy machine, the leader may be another one
    each time.
    """
    snapshotter = quorum.servers[await quorum.leader()].snapshotter
    assert snapshotter is not None
    await snapshotter.take()


async def first_offset(quorum: Quorum) -> int:
    kept = quorum.servers[await quorum.leader()].quorum
    assert kept is not None
    return kept.first_offset


async def until_caught_up(quorum: Quorum, follower: RaftQuorum) -> None:
    await until(
        lambda: all(
            server.quorum is not None
            and server.quorum.committed_offset == follower.committed_offset
            for server in quorum.servers.values()
        )
    )


async def test_a_controller_that_was_down_too_long_loads_the_snapshot(quorum: Quorum) -> None:
    client = quorum.client()
    away = (await quorum.leader() + 1) % 3
    await put(client, "first")
    await quorum.stop_one(away)
    for round_number in range(3):
        await put(client, f"more-{round_number}")
        await take_snapshot(quorum)
    assert await first_offset(quorum) > 1
    returned = (await quorum.start_one(away)).quorum
    assert returned is not None
    await until_caught_up(quorum, returned)
    # Now into a running controller.
    away = (await quorum.leader() + 1) % 3
    cut_off = quorum.servers[away].quorum
    assert cut_off is not None
    quorum.cut_off(away)
    for round_number in range(3):
        await put(client, f"again-{round_number}")
        await take_snapshot(quorum)
    assert await first_offset(quorum) > cut_off.committed_offset
    quorum.heal()
    await until_caught_up(quorum, cut_off)
    await quorum.stop_one(await quorum.leader())
    await quorum.leader()
    for key in ("first", "more-2", "again-0", "again-2"):
        assert await get(client, key) == b"v"


async def test_leadership_can_be_transferred(quorum: Quorum) -> None:
    client = quorum.client()
    await put(client, "before")
    old = await quorum.leader()
    target = (old + 1) % 3
    handed = quorum.servers[old].quorum
    assert handed is not None
    await until(lambda: handed.transfer(target))
    await until(lambda: quorum.servers[target].is_leading)
    assert await get(client, "before") == b"v"


async def test_random_stops_lose_no_acknowledged_write(quorum: Quorum) -> None:
    rng = Random(5)
    client = quorum.client()
    acknowledged: list[str] = []
    stop = asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not stop.is_set():
            key = f"{writer}-{number}"
            await put(client, key)
            acknowledged.append(key)
            number += 1
            await asyncio.sleep(0.002)  # a pace, not a wait

    writers = [asyncio.ensure_future(write(writer)) for writer in range(4)]

    async def more(count: int = 50) -> None:
        aim = len(acknowledged) + count
        await until(lambda: len(acknowledged) >= aim)

    for _ in range(4):
        await more()
        victim = rng.choice(sorted(quorum.servers))
        await quorum.stop_one(victim)
        await more()
        await quorum.start_one(victim)
    stop.set()
    await asyncio.gather(*writers)
    leader = quorum.servers[await quorum.leader()]
    assert leader.runtime is not None
    missing = await leader.runtime.with_committed_image(
        lambda image: [key for key in acknowledged if image.kv.get(key) is None]
    )
    assert acknowledged
    assert not missing


async def test_a_quorum_of_five_survives_the_loss_of_two_controllers(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, size=5)
    await quorum.start()
    client = quorum.client()
    await put(client, "before")
    for _ in range(2):
        await quorum.stop_one(await quorum.leader())
    await put(client, "after")
    assert await get(client, "before") == b"v"
    await client.close()
    await quorum.stop()


async def test_a_new_cluster_changes_its_leader_while_the_store_is_down(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    store = quorum.store = FaultyStore(MemoryStore(), Random(1))
    try:
        await quorum.start()
        client = quorum.client()
        await put(client, "before")
        first = await quorum.leader()
        store.down = True
        second = (first + 1) % 3
        await client.transfer_leadership(m.TransferLeadership(node_id=second), timeout_s=PATIENCE_S)
        await put(client, "after")
        assert await quorum.leader() == second
        # The first leader still has its image.
        await client.transfer_leadership(m.TransferLeadership(node_id=first), timeout_s=PATIENCE_S)
        assert await get(client, "after") == b"v"
        assert await quorum.leader() == first
    finally:
        await quorum.stop()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"peers": ("0@a:1", "1@b:1"), "cluster_id": "c"}, "peers"),
        ({"peers": ("0@a:1", "0@b:1", "2@c:1"), "cluster_id": "c"}, "peers"),
        ({"peers": ("0@a", "1@b:1", "2@c:1"), "cluster_id": "c"}, "peers"),
        ({"peers": ("0@a:1", "1@b:1", "2@c:1")}, "cluster_id"),
        (
            {"peers": ("0@a:1", "1@b:1", "2@c:1"), "cluster_id": "c", "controller_id": 3},
            "controller_id",
        ),
        ({"election_timeout_ms": 200}, "election_timeout_ms"),
    ],
)
def test_invalid_quorum_configurations_are_rejected(
    tmp_path: Path, settings: dict[str, object], name: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        ControllerConfig(data_dir=tmp_path, **settings)  # invalid on purpose
    assert caught.value.name == name
