"""Quorum changes over real sockets: controllers join, are promoted, removed and replaced, and all
clients find the current ones.
"""

import asyncio
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.controller.api import messages as m
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import JournalStateLost, QuorumChangeRefused
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.main import ControllerServer
from penstock.controller.raft.core import Role
from tests.support.controller_quorum import ELECTION_MS, Quorum, get, put
from tests.support.waiting import PATIENCE_S, until

WAIT_S = PATIENCE_S


async def add(client: ControllerClient, controller: str) -> None:
    await client.add_voter(m.AddVoter(controller=controller), timeout_s=WAIT_S)


async def remove(client: ControllerClient, node_id: int) -> None:
    await client.remove_controller(m.RemoveController(node_id=node_id), timeout_s=WAIT_S)


async def voters(client: ControllerClient) -> list[int]:
    status = await client.describe_quorum(timeout_s=WAIT_S)
    return [member.node_id for member in status.members if member.is_voter]


async def until_learner(client: ControllerClient, node_id: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while node_id not in [  # noqa: ASYNC110 - another task decides
            member.node_id for member in (await client.describe_quorum()).members
        ]:
            await asyncio.sleep(0.02)


def role(server: ControllerServer) -> str:
    core = server.quorum.core if server.quorum is not None else None
    assert core is not None
    return "voter" if core.is_voter else "learner" if core.is_member else "outside"


async def test_the_quorum_status_lists_addresses_disks_and_lags(
    quorum: Quorum,
) -> None:
    client = quorum.client()
    await put(client, "k")
    leader = await quorum.leader()
    async with asyncio.timeout(WAIT_S):
        while True:
            status = await client.describe_quorum()
            if all(member.directory_id and member.lag == 0 for member in status.members):
                break
    assert status.leader_id == leader
    assert [(member.node_id, member.address, member.is_voter) for member in status.members] == [
        (number, address, True) for number, address in enumerate(quorum.addresses)
    ]
    assert status.high_watermark == status.log_end
    assert not status.is_changing
    assert len({member.directory_id for member in status.members}) == 3


async def test_brokers_follow_a_quorum_whose_controllers_are_all_replaced(
    quorum: Quorum,
) -> None:
    broker = await quorum.broker()
    lost: list[bool] = []
    broker.follower.on_session(lost.append)
    client = quorum.client()
    for number in range(3):
        await put(client, f"before-{number}")
        newcomer = await quorum.start_newcomer(10 + number, quorum.addresses)
        await until_learner(client, 10 + number)
        await put(client, f"as-learner-{number}")
        assert role(newcomer) != "voter"
        await add(client, newcomer.address)
        await until(lambda server=newcomer: role(server) == "voter")
        await remove(client, number)
        await until(lambda server=quorum.servers[number]: role(server) == "outside")
        client.learn([server.address for server in quorum.servers.values()])
        assert await voters(client) == sorted([*range(number + 1, 3), *range(10, 11 + number)])
        await quorum.stop_one(number)
    await put(broker.client, "with the old list")
    assert set(broker.client.addresses) > {server.address for server in quorum.servers.values()}
    for key in ("before-0", "as-learner-2", "with the old list"):
        assert await get(client, key) == b"v"
    await until(lambda: broker.follower.image.kv.get("with the old list") is not None)
    assert not lost, "the broker never stopped writing"
    # The members are stored in the journals, not in any configuration.
    for number in (10, 11, 12):
        await quorum.stop_one(number)
    for number in (10, 11, 12):
        await quorum.start_one(number)
    await quorum.leader()
    assert await get(client, "with the old list") == b"v"


async def test_a_lost_disk_is_replaced_by_removing_and_adding_its_controller(
    quorum: Quorum,
) -> None:
    client = quorum.client()
    await put(client, "before")
    lost = (await quorum.leader() + 1) % 3
    await until_disks_are_known(client)
    await quorum.stop_one(lost)
    shutil.rmtree(quorum.configs[lost].data_dir)
    # Under its old id and with the old configuration, it would vote again in terms in which it has
    # already voted, so the others ignore it.
    impostor = await quorum.start_one(lost)
    assert impostor.quorum is not None
    await until(
        lambda: impostor.quorum is not None and impostor.quorum.core.role is Role.PRE_CANDIDATE
    )
    await put(client, "without it")
    assert (impostor.quorum.core.term, impostor.quorum.core.commit) == (0, 0)
    await quorum.stop_one(lost)
    newcomer = await quorum.start_newcomer(lost, quorum.addresses)
    with pytest.raises(QuorumChangeRefused, match="another data directory"):
        await client.add_learner(
            m.AddLearner(node_id=lost, address=newcomer.address, directory_id="of nobody"),
            timeout_s=WAIT_S,
        )
    assert role(newcomer) == "outside"
    await remove(client, lost)
    await until(lambda: role(newcomer) == "learner")
    await add(client, str(lost))
    await until(lambda: role(newcomer) == "voter")
    other = next(
        number
        for number in quorum.servers
        if number != lost and not quorum.servers[number].is_leading
    )
    await quorum.stop_one(other)
    await put(client, "with the new disk")
    leader = await quorum.leader()
    assert {leader, lost} | {other} == {0, 1, 2}


async def test_a_controller_with_a_restored_data_directory_cannot_vote_and_rejoins_empty(
    quorum: Quorum, tmp_path: Path
) -> None:
    client = quorum.client()
    await until_disks_are_known(client)
    leader = await quorum.leader()
    victim, other = (number for number in range(3) if number != leader)
    await put(client, "in the copy")
    directory = quorum.configs[victim].data_dir
    shutil.copytree(directory, tmp_path / "copy")
    # Only the leader and the controller to be restored have the next records.
    quorum.cut_off(other)
    await put(client, "acknowledged")
    await quorum.stop_one(victim)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "copy", directory)
    restored = await quorum.start_one(victim)
    assert restored.failed is not None
    with pytest.raises(
        JournalStateLost, match=r"it acknowledged entries up to .*penstock quorum remove"
    ):
        await asyncio.wait_for(asyncio.shield(restored.failed), WAIT_S)
    await quorum.stop_one(victim)
    with pytest.raises(JournalStateLost, match="empty data directory"):
        await quorum.start_one(victim)
    quorum.heal()
    newcomer = await quorum.start_newcomer(
        victim, [quorum.addresses[leader], quorum.addresses[other]]
    )
    await until_removed(client, victim)
    await until(lambda: role(newcomer) == "learner")
    await add(client, str(victim))
    await until(lambda: role(newcomer) == "voter")
    assert await get(client, "acknowledged") == b"v"


async def until_removed(client: ControllerClient, number: int) -> None:
    """Remove the controller. The leader rejects the request until it has heard from the voters that
    would remain.
    """
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await remove(client, number)
            except QuorumChangeRefused:
                await asyncio.sleep(0.02)
            else:
                return


async def until_disks_are_known(client: ControllerClient) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(member.directory_id for member in (await client.describe_quorum()).members):  # noqa: ASYNC110 - another task decides
            await asyncio.sleep(0.02)


async def test_a_leader_transfers_its_leadership_before_it_is_removed(
    quorum: Quorum,
) -> None:
    client = quorum.client()
    await put(client, "before")
    old = await quorum.leader()
    removed = quorum.servers[old]
    with capture_logs() as logs:
        await remove(client, old)
        await until(
            lambda: any(
                line["event"] == "controller_removed" and line["controller_id"] == old
                for line in logs
            )
        )
    assert role(removed) == "outside"
    new = await quorum.leader()
    assert new != old
    assert await get(client, "before") == b"v"
    direct = ControllerClient([removed.address])
    assert (await direct.describe()).role == "outside"
    observer = MetadataFollower(direct)
    await observer.start(WAIT_S)
    assert direct.address != removed.address, "a node outside of the quorum has nothing to serve"
    await observer.stop()
    await direct.close()


async def test_impossible_changes_are_rejected_with_the_reason(quorum: Quorum) -> None:
    client = quorum.client()
    leader = await quorum.leader()
    for wrong, reason in (
        (add(client, "7"), "no learner 7"),
        (remove(client, 7), "not in the quorum"),
    ):
        with pytest.raises(QuorumChangeRefused, match=reason):
            await wrong
    with pytest.raises(QuorumChangeRefused, match="not a voter that responds"):
        await client.transfer_leadership(m.TransferLeadership(node_id=7), timeout_s=WAIT_S)
    await quorum.stop_one((leader + 1) % 3)
    quorum.set_election_ms(ELECTION_MS)
    async with asyncio.timeout(WAIT_S):
        while (  # noqa: ASYNC110 - time has to pass
            max(member.last_fetch_ms for member in (await client.describe_quorum()).members)
            < ELECTION_MS
        ):
            await asyncio.sleep(0.05)
    with pytest.raises(QuorumChangeRefused, match="no majority"):
        await remove(client, (leader + 2) % 3)


async def test_controllers_that_all_restart_with_new_addresses_find_each_other(
    quorum: Quorum,
) -> None:
    client = quorum.client()
    await put(client, "before")
    await until_disks_are_known(client)
    await client.close()
    for number in range(3):
        await quorum.stop_one(number)
    quorum.move_all()
    await asyncio.gather(*(quorum.start_one(number) for number in range(3)))
    await quorum.leader()
    client = quorum.client()
    assert await get(client, "before") == b"v"
    async with asyncio.timeout(WAIT_S):
        while [  # noqa: ASYNC110 - others decide
            member.address for member in (await client.describe_quorum()).members
        ] != quorum.addresses:
            await asyncio.sleep(0.02)


async def test_leadership_is_transferred_on_request(quorum: Quorum) -> None:
    client = quorum.client()
    old = await quorum.leader()
    target = (old + 1) % 3
    await client.transfer_leadership(m.TransferLeadership(node_id=target), timeout_s=WAIT_S)
    await until(lambda: quorum.servers[target].is_leading)
    assert (await client.describe_quorum()).leader_id == target


async def test_leadership_is_transferred_once_to_any_voter(quorum: Quorum) -> None:
    client = quorum.client()
    before = await client.describe_quorum()
    await client.transfer_leadership(m.TransferLeadership(), timeout_s=WAIT_S)
    status = await client.describe_quorum()
    assert status.leader_id != before.leader_id
    assert status.leader_epoch == before.leader_epoch + 1


async def test_a_new_controller_loads_the_snapshot_if_the_log_is_truncated(
    quorum: Quorum,
) -> None:
    client = quorum.client()
    leader = quorum.servers[await quorum.leader()]
    for number in range(3):
        await put(client, f"k{number}")
        assert leader.snapshotter is not None
        await leader.snapshotter.take()
    assert leader.quorum is not None
    assert leader.quorum.first_offset > 1
    newcomer = await quorum.start_newcomer(3, quorum.addresses)
    await add_when_there(client, 3)
    await until(lambda: role(newcomer) == "voter")
    assert newcomer.quorum is not None
    assert newcomer.quorum.first_offset > 0
    await client.transfer_leadership(m.TransferLeadership(node_id=3), timeout_s=WAIT_S)
    await until(lambda: newcomer.is_leading)
    assert [await get(client, f"k{number}") for number in range(3)] == [b"v"] * 3


async def add_when_there(client: ControllerClient, node_id: int) -> None:
    await until_learner(client, node_id)
    await add(client, str(node_id))
