"""Scripts in which brokers are in two racks: 1 and 3 in one, 2 in the other."""

import asyncio
from typing import Any

from penstock.base.ids import NodeId
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from tests.sim.checkers import Part
from tests.sim.directed import Script, in_cluster
from tests.sim.nodes import FETCH_VERSION, rack_of

PART: Part = ("t", 0)


async def _fetch(script: Script, node_id: int, rack: str) -> Any:
    request = script.fetch_request(PART, 0, committed=False)
    request.rack_id = rack
    response = await script.send_request(script.broker(node_id), apis.FETCH, FETCH_VERSION, request)
    return response.responses[0].partitions[0]


@in_cluster(brokers=3, racks=2)
async def read_in_both_racks(script: Script) -> None:
    """Send requests of clients in both racks to the leader, and to a broker that is not
    the leader.
    """
    await script.create("t", (1,))
    await script.write(PART, (b"k", b"v"))
    near, far = rack_of(1, 2), rack_of(2, 2)
    await script.until(lambda: script.broker(1).tail_followers.has(NodeId(2)))
    found = (await _fetch(script, 1, far)).preferred_read_replica
    assert found == 2, f"a client of the other rack is sent to {found}"
    found = (await _fetch(script, 1, near)).preferred_read_replica
    assert found == -1, f"a client in the rack of the leader is sent to {found}"
    code = ErrorCode((await _fetch(script, 3, far)).error_code)
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker 3 serves the other rack: {code.name}"


@in_cluster(brokers=2, racks=2)
async def return_to_the_leader(script: Script) -> None:
    """Redirect a client to a broker that stops reading the leader's slots."""
    await script.create("t", (1,))
    await script.write(PART, (b"k", b"v"))
    far = rack_of(2, 2)
    await script.until(lambda: script.broker(1).tail_followers.has(NodeId(2)))
    request = script.fetch_request(PART, 0, committed=False)
    request.rack_id = far
    client = script.world.connect(script.broker(1))
    responses = [
        await client.send_request(apis.FETCH, FETCH_VERSION, request, 1.0) for _ in range(2)
    ]
    found = [each.responses[0].partitions[0].preferred_read_replica for each in responses]
    assert found == [2, -1], f"a client is sent to {found} in a row"
    script.broker(2).tails.back_off(NodeId(1), None)
    refused = await _fetch(script, 2, far)
    code = ErrorCode(refused.error_code)
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER, f"a broker that backs off returns {code.name}"
    found = refused.preferred_read_replica
    assert found == 1, f"a broker that backs off sends a client to {found}"
    await asyncio.sleep(1.0)
    found = (await _fetch(script, 1, far)).preferred_read_replica
    assert found == -1, f"a client is sent to {found}, which backs off"
