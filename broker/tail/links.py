"""Follow the tails of other brokers: ask them where it is, for the consumers in the rack of this
one, and let them know that they may send those here.

One Fetch at a time goes to each broker that is asked, with a `ReplicaState` as Kafka's followers
send it. It waits there for new records, and the answer names their WAL slots.
Invariants: a leader counts this broker as a follower only while it hears from it, so consumers are
sent only to a broker that can answer them. After an error the tails of the link are over: fetches
that wait for them get NOT_LEADER_OR_FOLLOWER and go to the leader.
Limits: one connection and one request to each broker; ANSWER_MAX_S for its answer; TAILS_MAX of
each; a tail that no consumer asked for is forgotten after UNUSED_S.
Must not: read records (`broker.handlers.cold_reads` does), or know consumers.
Source: KIP-392, KIP-903; ADR 0107.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

import structlog

from base.backoff import Backoff
from base.ids import NodeId
from broker.config import RACK_AWARE
from broker.network.peers import PeerGone
from broker.partition.committed import CommittedPartition
from broker.partition.local_broker import LocalBroker
from broker.tail.partition import TailPartition
from broker.tail.session import LEAVES_BYTES, TailSession
from broker.tail.told_tail import decode_told_tail
from broker.wire import apis
from broker.wire.errors import WireError
from broker.wire.gen.fetch import FetchRequest, FetchResponse
from controller.metadata.delta import MetadataDelta
from controller.metadata.topics import PartitionKey
from stream.ports import BrokerIncarnation

if TYPE_CHECKING:
    from controller.metadata.image import MetadataImage

log = structlog.get_logger(__name__)

FETCH_VERSION: Final = 17
GREET_S: Final = 2.0
"""How often a broker in another rack hears of this one, while no consumer needs its tails."""
FOLLOWED_S: Final = 5.0
"""How long a broker counts as a follower after its last request."""
ANSWER_MAX_S: Final = 5.0
UNUSED_S: Final = 60.0
TAILS_MAX: Final = 10_000
"""Partitions of one leader: as many as one Fetch may name."""
DISTRUST_S: Final = 30.0
"""How long this broker stays away from a leader whose slots it could not read."""
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
    is_down: bool = False
    has_answered: bool = False
    """Since it was down. A broker registers a moment before it accepts connections."""
    silent_until: float = 0.0
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class TailLinks:
    """Both ends: the brokers that this one follows, and those that follow it. `close` ends it."""

    def __init__(self, node: LocalBroker, rng: Random) -> None:
        self._node = node
        self._rng = rng
        self._clock = asyncio.get_running_loop().time
        self._peers = node.connect_peers()
        self._links: dict[NodeId, _Link] = {}
        self._heard: dict[BrokerIncarnation, float] = {}

    async def close(self) -> None:
        tasks = [link.task for link in self._links.values() if link.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.close()

    # --- the end of the leader --------------------------------------------------------------------

    def hears(self, request: FetchRequest) -> bool:
        """Return whether the request is of a live broker, which counts as a follower from now on
        unless it leaves.
        """
        replica = request.replica_state
        if replica is None:
            return False
        state = self._node.image.nodes.get(NodeId(replica.replica_id))
        if state is None or state.node_epoch != replica.replica_epoch or state.fenced:
            return False
        follower = BrokerIncarnation(state.node_id, state.node_epoch)
        if request.max_bytes == LEAVES_BYTES:
            self._heard.pop(follower, None)
        else:
            self._heard[follower] = self._clock()
        return True

    def is_followed_by(self, node_id: NodeId) -> bool:
        """Return whether this broker can serve the tails of what is led here."""
        state = self._node.image.nodes.get(node_id)
        if state is None:
            return False
        follower = BrokerIncarnation(node_id, state.node_epoch)
        heard_at = self._heard.get(follower)
        return (
            heard_at is not None
            and self._clock() - heard_at < FOLLOWED_S
            and follower not in self._node.gone
        )

    # --- the end of the follower ------------------------------------------------------------------

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
        if link.is_down:
            return None
        replaced = link.tails.pop(found.key, None)
        if replaced is not None:
            replaced.end()
        tail = link.tails[found.key] = TailPartition(found, self._clock())
        link.wanted.set()
        return tail

    def distrust(self, leader: NodeId) -> None:
        """Stay away from this leader for a while: what it tells cannot be read from the store
        here, or there is too much of it.
        """
        link = self._links.get(leader)
        if link is not None:
            link.silent_until, link.is_down = self._clock() + DISTRUST_S, True
            self._end_tails(link)

    def on_batch(self, delta: MetadataDelta, image: "MetadataImage") -> None:
        """Greet the brokers of other racks, and look again at tails that waited for the image."""
        if delta.everything or delta.node_ids:
            for follower in [each for each in self._heard if not image.nodes.is_alive(each)]:
                del self._heard[follower]
            for node_id in self._far_nodes(image):
                self._link(node_id)
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
            me = BrokerIncarnation(self._node.node_id, self._node.node_epoch)
            link = self._links[node_id] = _Link(node_id, TailSession(me))
            link.task = asyncio.get_running_loop().create_task(self._run(link))
        return link

    async def _run(self, link: _Link) -> None:
        """Ask until nobody needs it any more."""
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, self._rng)
        try:
            while self._is_needed(link):
                is_silent = self._clock() < link.silent_until
                try:
                    await self._ask(link, leaves=is_silent)
                except _UNREACHABLE as error:
                    self._broke(link, error)
                    await asyncio.sleep(backoff.next_s())
                    continue
                backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, self._rng)
                link.has_answered = True
                if is_silent:
                    await asyncio.sleep(link.silent_until - self._clock())
                link.is_down = False
                if not link.tails:
                    await _set_within(link.wanted, GREET_S)
        finally:
            self._end_tails(link)
            if self._links.get(link.node_id) is link:
                del self._links[link.node_id]

    def _is_needed(self, link: _Link) -> bool:
        now = self._clock()
        for key, tail in list(link.tails.items()):
            if now - tail.used_at > UNUSED_S and not tail.is_waited_for:
                del link.tails[key]
        link.wanted.clear()
        return bool(link.tails) or link.node_id in self._far_nodes(self._node.image)

    async def _ask(self, link: _Link, *, leaves: bool) -> None:
        asked = dict(link.tails)
        async with asyncio.timeout(ANSWER_MAX_S):
            response = await self._peers.ask(
                link.node_id,
                apis.FETCH,
                FETCH_VERSION,
                link.session.request(asked, leaves=leaves),
                FetchResponse,
            )
        if not link.session.answered(response):
            return
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
                tail.take(
                    result.high_watermark, result.last_stable_offset, result.log_start_offset, told
                )

    def _broke(self, link: _Link, error: Exception) -> None:
        if link.has_answered:
            log.info("tail_link_broke", node_id=link.node_id, error=repr(error))
        link.is_down, link.has_answered = True, False
        link.session.reset()
        self._end_tails(link)

    def _end_tails(self, link: _Link) -> None:
        tails, link.tails = link.tails, {}
        for tail in tails.values():
            tail.end()


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
