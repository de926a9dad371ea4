"""Follow the tails of other brokers, for consumers in this broker's rack (KIP-392, KIP-903). See
docs/design/fetch.md.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from penstock.base.backoff import Backoff
from penstock.base.buffers import Buffer
from penstock.base.errors import StreamError
from penstock.base.ids import NodeId, Offset, StreamId
from penstock.broker.config import RACK_AWARE
from penstock.broker.network.peers import PeerConnections, PeerGone
from penstock.broker.partition.committed_reader import CommittedPartition
from penstock.broker.partition.delayed_fetch import FetchWait
from penstock.broker.partition.local_broker import LocalBroker
from penstock.broker.tail.partition import TailDelta, TailPartition
from penstock.broker.tail.reported_tail import decode_reported_tail
from penstock.broker.tail.session import TailSession, first_request
from penstock.controller.metadata.delta import MetadataDelta
from penstock.controller.metadata.topics import PartitionKey
from penstock.objectstore.errors import ObjectNotFound, ObjectStoreError
from penstock.protocol import apis
from penstock.protocol.errors import WireError
from penstock.protocol.gen.fetch import FetchRequest, FetchResponse
from penstock.stream.ports import BrokerIncarnation, ObjectRange

if TYPE_CHECKING:
    from penstock.controller.metadata.image import MetadataImage

log = structlog.get_logger(__name__)

FETCH_VERSION: Final = 17
GREET_S: Final = 2.0
"""Interval of requests to a broker in another rack while no consumer needs its tails. It is less
than half of `broker.tail.followers.FOLLOWED_S`.
"""
RESPONSE_MAX_S: Final = 5.0
UNUSED_S: Final = 60.0
TAILS_MAX: Final = 10_000
"""Maximum number of followed partitions per leader, which is also the maximum in one Fetch."""
BACKOFF_S: Final = 30.0
"""How long this broker waits before it retries unreadable slots."""
SLOT_READ_MAX_S: Final = 5.0
"""A slot read that takes longer is considered failed, because the leader has the records in
memory.
"""
UNREAD_MAX: Final = 16
"""Maximum number of failed reads per leader that are retried."""
LOADS_MAX: Final = 32
"""Maximum number of responses whose slots are being read."""
LOADED_SLOTS_MAX: Final = 8
"""Maximum number of slots loaded per response. Fetches of consumers that are further behind read
the other slots themselves.
"""
REPORT_MAX_S: Final = 1.0
"""How long a read waits for a leader's first report."""
_RETRY_FIRST_MS: Final = 100
_RETRY_MAX_MS: Final = 5_000
_UNREACHABLE: Final = (PeerGone, OSError, EOFError, WireError)


@dataclass(slots=True, eq=False)
class _Link:
    node_id: NodeId
    session: TailSession
    tails: dict[PartitionKey, TailPartition] = field(
        default_factory=dict[PartitionKey, TailPartition]
    )
    is_reached: bool = False
    has_failed: bool = False
    """Whether a request has failed since the last successful one. Failures are expected at first,
    because a broker registers just before it accepts connections.
    """
    backs_off_until: float = 0.0
    """Event loop time, in seconds."""
    unread: dict[StreamId, "SlotRead"] = field(default_factory=dict[StreamId, "SlotRead"])
    """Failed reads by stream. The backoff lasts until all of them have been retried
    successfully.
    """
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a tail joins the session, or the link starts to back off."""
    task: "asyncio.Task[None] | None" = None
    first: "asyncio.Task[None] | None" = None
    """The task that requests new tails."""

    def backs_off(self, now: float) -> bool:
        return bool(self.unread) or now < self.backs_off_until


class SlotRead(NamedTuple):
    """The arguments of one `StreamReader.read_tail`."""

    ranges: Sequence[ObjectRange]
    offset: Offset
    end_offset: Offset
    max_bytes: int


class TailCounts(NamedTuple):
    """Number of working links, failed links and followed tails."""

    up: int
    down: int
    partitions: int


class TailLinks:
    """The links to the brokers that this broker follows.

    This broker sends one Fetch at a time to each leader, with a `ReplicaState` as in Kafka's
    followers. The Fetch waits at the leader for new records, and the response lists their WAL
    slots. New tails are requested immediately over a second connection, because the first one may
    be waiting; they join the session after their first report. These requests also indicate that
    the leader may redirect consumers here. After an error, the tails of the link end, and waiting
    fetches fail with NOT_LEADER_OR_FOLLOWER. After a failed slot read, the leader does not redirect
    consumers here until this broker has read these slots. A tail without readers is dropped after
    UNUSED_S.
    """

    def __init__(self, node: LocalBroker, rng: Random) -> None:
        self._node = node
        self._rng = rng
        self._clock = asyncio.get_running_loop().time
        self._me = BrokerIncarnation(node.node_id, node.node_epoch)
        self._peers, self._first_peers = node.connect_peers(), node.connect_peers()
        self._links: dict[NodeId, _Link] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._image_waits: dict[FetchWait, None] = {}
        self.batches_count = 0
        """Number of image changes. Fetches that are not parked yet use it to detect changes."""

    async def close(self) -> None:
        tasks = [
            task
            for link in self._links.values()
            for task in (link.task, link.first)
            if task is not None
        ]
        tasks += self._loads
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.close()
        self._first_peers.close()

    def counts(self) -> TailCounts:
        links = self._links.values()
        down_count = sum(map(self._is_down, links))
        return TailCounts(
            len(links) - down_count, down_count, sum(len(link.tails) for link in links)
        )

    def find(self, found: CommittedPartition) -> TailPartition | None:
        """Return the tail of this partition, if the leader reports it to this broker."""
        link = self._links.get(found.leader.node_id)
        tail = None if link is None else link.tails.get(found.key)
        if tail is None or tail.leader != found.leader or tail.leader_epoch != found.leader_epoch:
            return None
        tail.used_at = self._clock()
        tail.forget_committed(found.committed_end)
        return tail

    def follow(self, found: CommittedPartition) -> TailPartition | None:
        """Return the tail of this partition, and start requesting it from the leader. Return None
        if the leader cannot be reached.
        """
        tail = self.find(found)
        if tail is not None:
            return tail
        link = self._link(found.leader.node_id)
        if len(link.tails) >= TAILS_MAX:
            self.back_off(found.leader.node_id, None)
        if self._is_down(link):
            return None
        replaced = link.tails.pop(found.key, None)
        if replaced is not None:
            replaced.end()
        tail = link.tails[found.key] = TailPartition(found, self._clock())
        if link.first is None:
            link.first = asyncio.get_running_loop().create_task(self._ask_first(link))
        return tail

    def _is_down(self, link: _Link) -> bool:
        return link.has_failed or link.backs_off(self._clock())

    async def read(self, leader: NodeId, read: SlotRead) -> list[Buffer] | None:
        """Read slots of this leader. After a failure, back off and return None. Raises
        ObjectNotFound if a slot was uploaded and deleted in the meantime.
        """
        try:
            return await self._read(read)
        except ObjectNotFound:
            raise
        except (StreamError, ObjectStoreError, TimeoutError) as error:
            # The slot is damaged, in an unknown format, or slow to read. The leader has the records
            # in memory.
            log.warning("tail_read_failed", leader=leader, error=str(error) or type(error).__name__)
            self.back_off(leader, read)
            return None

    async def _read(self, read: SlotRead) -> list[Buffer]:
        async with asyncio.timeout(SLOT_READ_MAX_S):
            return await self._node.storage.reader.read_tail(*read)

    def back_off(self, leader: NodeId, unread: SlotRead | None) -> None:
        """Stop following this leader for at least BACKOFF_S, and until `unread` can be read.
        unread: None if the leader has more tails than this broker can follow.
        """
        link = self._links.get(leader)
        if link is not None:
            link.backs_off_until = self._clock() + BACKOFF_S
            if unread is not None and len(link.unread) < UNREAD_MAX:
                link.unread[unread.ranges[0].range.stream_id] = unread
            self._end_tails(link)
            link.has_news.set()

    def await_image(self, wait: FetchWait) -> Callable[[], None]:
        """Wake a fetch on the next image change, because its client has newer metadata than this
        broker. Return a function that unregisters the fetch.
        """
        self._image_waits[wait] = None

        def forget() -> None:
            self._image_waits.pop(wait, None)

        return forget

    def on_batch(self, delta: MetadataDelta, image: "MetadataImage") -> None:
        """Start sending requests to brokers in other racks, and wake the fetches that wait for the
        image.
        """
        if delta.everything or delta.node_ids:
            for node_id in self._far_nodes(image):
                self._link(node_id)
        self.batches_count += 1
        for wait in list(self._image_waits):
            wait.interrupt()
        for link in self._links.values():
            for tail in link.tails.values():
                if tail.is_waited_for and (delta.everything or tail.stream_id in delta.stream_ids):
                    tail.wake()

    def _far_nodes(self, image: "MetadataImage") -> Collection[NodeId]:
        config = self._node.config
        if not config.rack or config.replica_selector != RACK_AWARE:
            return ()
        return [
            state.node_id
            for state in image.nodes
            if state.rack and state.rack != config.rack and not state.fenced
        ]

    def _link(self, node_id: NodeId) -> _Link:
        """Return the link to this broker, creating it if necessary."""
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = _Link(node_id, TailSession(self._me))
            link.task = asyncio.get_running_loop().create_task(self._run(link))
        return link

    async def _run(self, link: _Link) -> None:
        """Send requests until the link is no longer needed."""
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, self._rng)
        try:
            while self._is_needed(link):
                try:
                    if link.backs_off(self._clock()):
                        await self._back_off(link)
                    else:
                        await self._send_request(link)
                        await self._rest(link)
                except _UNREACHABLE as error:
                    self._broke(link, error)
                    await asyncio.sleep(backoff.next_s())
                else:
                    backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, self._rng)
        finally:
            self._end_tails(link)
            if self._links.get(link.node_id) is link:
                del self._links[link.node_id]

    def _is_needed(self, link: _Link) -> bool:
        now = self._clock()
        for key, tail in list(link.tails.items()):
            if now - tail.used_at > UNUSED_S and not tail.is_waited_for:
                del link.tails[key]
        return (
            bool(link.tails)
            or link.backs_off(now)
            or link.node_id in self._far_nodes(self._node.image)
        )

    async def _back_off(self, link: _Link) -> None:
        """Ask the leader not to redirect consumers here, wait, and retry failed reads. Raises the
        errors in `_UNREACHABLE`.
        """
        request = link.session.request({}, leaves=True)
        link.session.take_response(await self._response(self._peers, link, request))
        await asyncio.sleep(link.backs_off_until - self._clock())
        for stream_id, read in list(link.unread.items()):
            if await self._is_readable(stream_id, read):
                link.unread.pop(stream_id, None)
            else:
                link.backs_off_until = self._clock() + BACKOFF_S

    async def _is_readable(self, stream_id: StreamId, read: SlotRead) -> bool:
        """Return whether this broker can read these slots or no longer needs them."""
        if self._node.storage.committed_end(stream_id) >= read.end_offset:
            return True
        try:
            await self._read(read)
        except ObjectNotFound:
            return True  # uploaded and deleted in the meantime
        except (StreamError, ObjectStoreError, TimeoutError):
            return False
        return True

    async def _rest(self, link: _Link) -> None:
        """Wait at most GREET_S for the first tail of the session, or until the link backs off."""
        link.has_news.clear()
        if not link.backs_off(self._clock()) and not any(
            tail.is_known for tail in link.tails.values()
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout(GREET_S):
                    await link.has_news.wait()

    async def _send_request(self, link: _Link) -> None:
        """Request changes in the tails of the session. Raises the errors in `_UNREACHABLE`."""
        requested = {key: tail for key, tail in link.tails.items() if tail.is_known}
        request = link.session.request(requested)
        response = await self._response(self._peers, link, request)
        link.is_reached, link.has_failed = True, False
        if link.session.take_response(response):
            self._take(link, requested, response)
        else:
            await asyncio.sleep(_RETRY_FIRST_MS / 1_000)

    async def _ask_first(self, link: _Link) -> None:
        """Request the tails that have not been reported yet."""
        try:
            while new := {key: tail for key, tail in link.tails.items() if not tail.is_known}:
                response = await self._response(
                    self._first_peers, link, first_request(self._me, new)
                )
                self._take(link, new, response)
                if not any(tail.is_known or tail.is_over for tail in new.values()):
                    raise WireError("the leader did not report the requested tails")
        except _UNREACHABLE as error:
            self._broke(link, error)
        finally:
            link.first = None
            link.has_news.set()

    async def _response(
        self, peers: PeerConnections, link: _Link, request: FetchRequest
    ) -> FetchResponse:
        async with asyncio.timeout(RESPONSE_MAX_S):
            return await peers.send_request(
                link.node_id, apis.FETCH, FETCH_VERSION, request, FetchResponse
            )

    def _take(
        self, link: _Link, requested: Mapping[PartitionKey, TailPartition], response: FetchResponse
    ) -> None:
        """Apply the leader's reports. Raises WireError."""
        slots: dict[str, ObjectRange] = {}
        reports: list[tuple[TailPartition, TailDelta]] = []
        for topic in response.responses:
            assert topic.topic_id is not None, "this version has ids"
            for result in topic.partitions:
                key = PartitionKey(topic.topic_id, result.partition_index)
                tail = requested.get(key)
                if tail is None or link.tails.get(key) is not tail:
                    continue
                if result.error_code:
                    del link.tails[key]
                    tail.end()
                    continue
                report = decode_reported_tail(result.records) if result.records else None
                delta = tail.take(
                    result.high_watermark,
                    result.last_stable_offset,
                    result.log_start_offset,
                    report,
                )
                reports.append((tail, delta))
                if not delta.is_first:
                    slots |= {source.key: source for source in delta.ranges[-LOADED_SLOTS_MAX:]}
        self._notify(list(slots.values())[-LOADED_SLOTS_MAX:], reports)

    def _notify(
        self, slots: Collection[ObjectRange], reports: Sequence[tuple[TailPartition, TailDelta]]
    ) -> None:
        """Read the slots, then wake the fetches that wait for them and can then read them from
        memory.
        """
        if slots and len(self._loads) < LOADS_MAX:
            load = asyncio.get_running_loop().create_task(self._load_and_notify(slots, reports))
            self._loads.add(load)
            load.add_done_callback(self._loads.discard)
            return
        for tail, delta in reports:
            tail.notify(delta)

    async def _load_and_notify(
        self, slots: Iterable[ObjectRange], reports: Iterable[tuple[TailPartition, TailDelta]]
    ) -> None:
        await asyncio.gather(*map(self._load, slots))
        for tail, delta in reports:
            tail.notify(delta)

    async def _load(self, source: ObjectRange) -> None:
        # A fetch that reads this slot will fail and handle the error.
        with suppress(ObjectStoreError, StreamError, TimeoutError):
            async with asyncio.timeout(SLOT_READ_MAX_S):
                await self._node.storage.reader.load_tail(source)

    def _broke(self, link: _Link, error: Exception) -> None:
        if link.is_reached:
            log.info("tail_link_broken", node_id=link.node_id, error=repr(error))
        link.is_reached, link.has_failed = False, True
        link.session.reset()
        self._end_tails(link)

    def _end_tails(self, link: _Link) -> None:
        tails, link.tails = link.tails, {}
        for tail in tails.values():
            tail.end()


async def await_report(tail: TailPartition) -> bool:
    """Wait for the leader's first report, at most for REPORT_MAX_S. Return whether it has
    arrived.
    """
    if not tail.is_known and not tail.is_over:
        reported = asyncio.Event()
        wait = FetchWait(1, reported.set)
        tail.add_fetch_wait(wait)
        try:
            async with asyncio.timeout(REPORT_MAX_S):
                await reported.wait()
        except TimeoutError:
            return False
        finally:
            tail.remove_fetch_wait(wait)
    return tail.is_known and not tail.is_over
