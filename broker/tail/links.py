"""Follow the tails of other brokers: ask them where it is, for the consumers in the rack of this
one, and let them know that they may send those here.

One Fetch at a time goes to each broker that is asked, with a `ReplicaState` as Kafka's followers
send it. It waits there for new records, and the answer names their WAL slots. A new tail is asked
for at once, over a second connection, because the first one may wait.
Invariants: a tail is in the session only once its leader has told of it, so each is asked for over
one of the connections. After an error the tails of the link are over: fetches that wait for them
get NOT_LEADER_OR_FOLLOWER and go to the leader.
Limits: two connections to each broker, with one request each; ANSWER_MAX_S for its answer;
TAILS_MAX of each; LOADS_MAX; a tail that no consumer asked for is forgotten after UNUSED_S.
Must not: interpret records, or know consumers.
Source: KIP-392, KIP-903; ADR 0107.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from base.backoff import Backoff
from base.ids import NodeId
from broker.config import RACK_AWARE
from broker.network.peers import PeerConnections, PeerGone
from broker.partition.committed import CommittedPartition
from broker.partition.delayed_fetch import FetchWait
from broker.partition.local_broker import LocalBroker
from broker.tail.partition import TailDelta, TailPartition
from broker.tail.session import TailSession, first_request
from broker.tail.told_tail import decode_told_tail
from broker.wire import apis
from broker.wire.errors import WireError
from broker.wire.gen.fetch import FetchRequest, FetchResponse
from controller.metadata.delta import MetadataDelta
from controller.metadata.topics import PartitionKey
from objectstore.errors import ObjectStoreError
from stream.errors import StreamError
from stream.ports import BrokerIncarnation, ObjectRange

if TYPE_CHECKING:
    from controller.metadata.image import MetadataImage

log = structlog.get_logger(__name__)

FETCH_VERSION: Final = 17
GREET_S: Final = 2.0
"""How often a broker in another rack hears of this one, while no consumer needs its tails. Less
than half of `broker.tail.followers.FOLLOWED_S`.
"""
ANSWER_MAX_S: Final = 5.0
UNUSED_S: Final = 60.0
TAILS_MAX: Final = 10_000
"""Partitions of one leader: as many as one Fetch may name."""
DISTRUST_S: Final = 30.0
"""How long this broker stays away from a leader whose slots it could not read."""
LOADS_MAX: Final = 32
"""Answers of leaders whose slots are being read."""
LOADED_SLOTS_MAX: Final = 8
"""Of one answer. Consumers that are behind more of them read the others themselves."""
TOLD_MAX_S: Final = 1.0
"""How long a read waits for the first answer of a leader."""
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
    """Since it was reached. A broker registers a moment before it accepts connections."""
    silent_until: float = 0.0
    """When this broker trusts the leader again, in seconds of the event loop."""
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    """A tail joins the session, or the link is not trusted any more."""
    task: "asyncio.Task[None] | None" = None
    first: "asyncio.Task[None] | None" = None
    """Asks for new tails."""


class TailCounts(NamedTuple):
    """Links that work and those that do not, and the tails that are followed."""

    up: int
    down: int
    partitions: int


class TailLinks:
    """The brokers that this one follows. `close` ends it."""

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
        """Changes of the image, for fetches that looked at it and are not parked yet."""

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
        """Return the tail of this partition if its leader tells of it."""
        link = self._links.get(found.leader.node_id)
        tail = None if link is None else link.tails.get(found.key)
        if tail is None or tail.leader != found.leader or tail.leader_epoch != found.leader_epoch:
            return None
        tail.used_at = self._clock()
        tail.forget_committed(found.committed_end)
        return tail

    def follow(self, found: CommittedPartition) -> TailPartition | None:
        """Return the tail of this partition, and ask its leader for it from now on. None while the
        leader cannot be asked.
        """
        tail = self.find(found)
        if tail is not None:
            return tail
        link = self._link(found.leader.node_id)
        if len(link.tails) >= TAILS_MAX:
            self.distrust(found.leader.node_id)
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
        return link.has_failed or self._clock() < link.silent_until

    def distrust(self, leader: NodeId) -> None:
        """Stay away from this leader for a while: what it tells cannot be read from the store
        here, or there is too much of it.
        """
        link = self._links.get(leader)
        if link is not None:
            link.silent_until = self._clock() + DISTRUST_S
            self._end_tails(link)
            link.has_news.set()

    def await_image(self, wait: FetchWait) -> Callable[[], None]:
        """Wake a fetch at the next change of the image: its client knows of a leader that this
        broker does not know yet. Returns a function that forgets it.
        """
        self._image_waits[wait] = None

        def forget() -> None:
            self._image_waits.pop(wait, None)

        return forget

    def on_batch(self, delta: MetadataDelta, image: "MetadataImage") -> None:
        """Greet the brokers of other racks, and wake the fetches that wait for the image."""
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
        """Return the link to this broker, which is made if necessary."""
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = _Link(node_id, TailSession(self._me))
            link.task = asyncio.get_running_loop().create_task(self._run(link))
        return link

    async def _run(self, link: _Link) -> None:
        """Ask as long as the link is needed."""
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, self._rng)
        try:
            while self._is_needed(link):
                try:
                    if self._clock() < link.silent_until:
                        await self._stay_away(link)
                    else:
                        await self._ask(link)
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
        return bool(link.tails) or link.node_id in self._far_nodes(self._node.image)

    async def _stay_away(self, link: _Link) -> None:
        """Let the leader send no consumers here, until it is trusted again. Raises what
        `_UNREACHABLE` has.
        """
        request = link.session.request({}, leaves=True)
        link.session.answered(await self._answer(self._peers, link, request))
        await asyncio.sleep(link.silent_until - self._clock())

    async def _rest(self, link: _Link) -> None:
        """Wait for the first tail of the session, or until the link is not trusted any more, at
        most GREET_S.
        """
        link.has_news.clear()
        is_trusted = self._clock() >= link.silent_until
        if is_trusted and not any(tail.is_known for tail in link.tails.values()):
            with suppress(TimeoutError):
                async with asyncio.timeout(GREET_S):
                    await link.has_news.wait()

    async def _ask(self, link: _Link) -> None:
        """Ask for what is new in the tails of the session. Raises what `_UNREACHABLE` has."""
        asked = {key: tail for key, tail in link.tails.items() if tail.is_known}
        request = link.session.request(asked)
        response = await self._answer(self._peers, link, request)
        link.is_reached, link.has_failed = True, False
        if link.session.answered(response):
            self._take(link, asked, response)
        else:
            await asyncio.sleep(_RETRY_FIRST_MS / 1_000)

    async def _ask_first(self, link: _Link) -> None:
        """Ask for the tails that are not known yet."""
        try:
            while new := {key: tail for key, tail in link.tails.items() if not tail.is_known}:
                response = await self._answer(self._first_peers, link, first_request(self._me, new))
                self._take(link, new, response)
                if not any(tail.is_known or tail.is_over for tail in new.values()):
                    raise WireError("a broker tells of none of the tails that it was asked for")
        except _UNREACHABLE as error:
            self._broke(link, error)
        finally:
            link.first = None
            link.has_news.set()

    async def _answer(
        self, peers: PeerConnections, link: _Link, request: FetchRequest
    ) -> FetchResponse:
        async with asyncio.timeout(ANSWER_MAX_S):
            return await peers.ask(link.node_id, apis.FETCH, FETCH_VERSION, request, FetchResponse)

    def _take(
        self, link: _Link, asked: Mapping[PartitionKey, TailPartition], response: FetchResponse
    ) -> None:
        """Take what the leader tells of these tails. Raises WireError."""
        slots: dict[str, ObjectRange] = {}
        told_tails: list[tuple[TailPartition, TailDelta]] = []
        for topic in response.responses:
            assert topic.topic_id is not None, "this version has ids"
            for result in topic.partitions:
                key = PartitionKey(topic.topic_id, result.partition_index)
                tail = asked.get(key)
                if tail is None or link.tails.get(key) is not tail:
                    continue
                if result.error_code:
                    del link.tails[key]
                    tail.end()
                    continue
                told = decode_told_tail(result.records) if result.records else None
                delta = tail.take(
                    result.high_watermark, result.last_stable_offset, result.log_start_offset, told
                )
                told_tails.append((tail, delta))
                if not delta.is_first:
                    slots |= {source.key: source for source in delta.ranges[-LOADED_SLOTS_MAX:]}
        self._tell(list(slots.values())[-LOADED_SLOTS_MAX:], told_tails)

    def _tell(
        self, slots: Collection[ObjectRange], told_tails: Sequence[tuple[TailPartition, TailDelta]]
    ) -> None:
        """Read the slots, then wake the fetches that wait for them: they find them in memory."""
        if slots and len(self._loads) < LOADS_MAX:
            load = asyncio.get_running_loop().create_task(self._load_and_tell(slots, told_tails))
            self._loads.add(load)
            load.add_done_callback(self._loads.discard)
            return
        for tail, delta in told_tails:
            tail.tell(delta)

    async def _load_and_tell(
        self, slots: Iterable[ObjectRange], told_tails: Iterable[tuple[TailPartition, TailDelta]]
    ) -> None:
        await asyncio.gather(*map(self._load, slots))
        for tail, delta in told_tails:
            tail.tell(delta)

    async def _load(self, source: ObjectRange) -> None:
        with suppress(ObjectStoreError, StreamError):  # a fetch that reads it meets it again
            await self._node.storage.load_tail(source)

    def _broke(self, link: _Link, error: Exception) -> None:
        if link.is_reached:
            log.info("tail_link_broke", node_id=link.node_id, error=repr(error))
        link.is_reached, link.has_failed = False, True
        link.session.reset()
        self._end_tails(link)

    def _end_tails(self, link: _Link) -> None:
        tails, link.tails = link.tails, {}
        for tail in tails.values():
            tail.end()


async def is_told(tail: TailPartition) -> bool:
    """Wait until the leader tells of the tail, at most TOLD_MAX_S. Return whether it did."""
    if not tail.is_known and not tail.is_over:
        told = asyncio.Event()
        wait = FetchWait(1, told.set)
        tail.add_fetch_wait(wait)
        try:
            async with asyncio.timeout(TOLD_MAX_S):
                await told.wait()
        except TimeoutError:
            return False
        finally:
            tail.remove_fetch_wait(wait)
    return tail.is_known and not tail.is_over
