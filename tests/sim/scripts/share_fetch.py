"""Scripts about share group members that fetch and acknowledge records."""

from typing import Any, Final

from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import share_acknowledge, share_fetch
from tests.sim.connections import Connection, NoResponse
from tests.sim.directed import Script
from tests.sim.scripts.share_states import GROUP, PART, States

_VERSION: Final = 2
_ACCEPT: Final = 1
_RELEASE: Final = 2
_TIMEOUT_S: Final = 5.0


class Worker:
    """A member with one session at the leader."""

    def __init__(self, script: Script, name: str) -> None:
        leader = script.leader(PART)
        assert leader is not None
        self._connection: Connection = script.world.connect(leader)
        self._name = name
        self._session_epoch = 0
        self._topic_id = script.topic(PART[0]).topic_id

    async def fetch(self) -> set[int]:
        """Return the offsets that the member acquires."""
        topic = share_fetch.FetchTopic(self._topic_id, [share_fetch.FetchPartition(PART[1], [])])
        request = share_fetch.ShareFetchRequest(
            group_id=GROUP,
            member_id=self._name,
            share_session_epoch=self._session_epoch,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[] if self._session_epoch else [topic],
        )
        response = await self._send_request(apis.SHARE_FETCH, request)
        return {
            offset
            for found in response.responses
            for partition in found.partitions
            for item in partition.acquired_records
            for offset in range(item.first_offset, item.last_offset + 1)
        }

    async def acknowledge(self, *offsets: int, kind: int = _ACCEPT) -> None:
        batches = [share_acknowledge.AcknowledgementBatch(at, at, [kind]) for at in offsets]
        part = share_acknowledge.AcknowledgePartition(PART[1], batches)
        request = share_acknowledge.ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self._name,
            share_session_epoch=self._session_epoch,
            topics=[share_acknowledge.AcknowledgeTopic(self._topic_id, [part])],
        )
        response = await self._send_request(apis.SHARE_ACKNOWLEDGE, request)
        code = ErrorCode(response.responses[0].partitions[0].error_code)
        assert code is ErrorCode.NONE, f"an acknowledgment gets {code.name}"

    async def _send_request(self, api: Any, request: Any) -> Any:
        """Send a request. Raises NoResponse."""
        response = await self._connection.send_request(api, _VERSION, request, _TIMEOUT_S)
        assert response.error_code == ErrorCode.NONE, ErrorCode(response.error_code).name
        self._session_epoch += 1
        return response


async def _begin(script: Script) -> Worker:
    """Return a member that has acquired 5 records. Broker 1 stores states, broker 2 leads."""
    await States(script).begin()
    for number in range(5):
        await script.write(PART, (b"k", b"%d" % number))
    worker = Worker(script, "a")
    acquired = set[int]()
    while len(acquired) < 5:
        acquired |= await worker.fetch()
    return worker


async def release_one_of_five_records(script: Script) -> None:
    worker = await _begin(script)
    await worker.acknowledge(0, kind=_RELEASE)
    other, found = Worker(script, "b"), set[int]()
    for _ in range(3):
        found |= await other.fetch()
    assert found == {0}, f"another member has {sorted(found)}, 0 was released"


async def acknowledge_while_the_store_hangs(script: Script) -> None:
    worker = await _begin(script)
    script.hold(1)
    try:
        await worker.acknowledge(0)
    except NoResponse:
        return
    raise AssertionError("an acknowledgment succeeds before it is durable")


async def move_with_acknowledged_records(script: Script) -> None:
    """Move the partition when some records are acknowledged, with a gap between them."""
    worker = await _begin(script)
    await worker.acknowledge(0, 1, 3)
    await script.move(PART, 1)
    other, found = Worker(script, "b"), set[int]()
    for _ in range(10):
        found |= await other.fetch()
    assert found == {2, 4}, f"the next leader gives {sorted(found)}"
