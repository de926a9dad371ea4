"""Console requests to brokers and the store: a slow or hostile one neither delays nor hides others,
and times are those of the requests.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import ParamSpec, TypeVar, cast
from uuid import UUID

import pytest

from penstock.base.ids import NodeEpoch, NodeId
from penstock.controller.api.load_messages import BrokerLoad, BrokerSession, Load
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import NodeRecord
from penstock.deploy.admin.groups.views import ListedGroup
from penstock.deploy.console import broker_responses
from penstock.deploy.console.broker_responses import AT_ONCE, BrokerResponses
from penstock.deploy.console.broker_watch import REFUSED_S, BrokerWatch
from penstock.deploy.console.group_list import LastGroups
from penstock.deploy.console.health import BrokerHealth, StoreHealth, diagnose
from penstock.deploy.console.store_probe import StoreProbe
from penstock.deploy.console.views import open_sessions
from penstock.deploy.errors import Busy
from penstock.deploy.top.offsets import Led, Measured
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectInfo
from penstock.protocol.client.errors import AuthenticationRefused
from tests.support.waiting import until

_P = ParamSpec("_P")
_T = TypeVar("_T")
REFUSAL = "user 'console': the broker rejects the password"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """Brokers by id, all of which respond to heartbeats."""

    def __init__(self, brokers: int) -> None:
        self._addresses = {number: f"b{number}:1" for number in range(1, brokers + 1)}

    def addresses(self) -> dict[int, str]:
        return self._addresses

    def silent_brokers(self) -> frozenset[int]:
        return frozenset()

    def bootstrap(self) -> str:
        return "b1:1"

    def ends(self, topic: str) -> Mapping[int, int]:
        return {}


class Coordinators:
    """Respond in place of `Console.call`; each coordinator has one group."""

    def __init__(self) -> None:
        self.at_once = self.most_at_once = 0
        self.late: dict[int, asyncio.Event] = {}
        self.refused: set[int] = set()

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        del function
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return cast("_T", await self._respond(args))
        finally:
            self.at_once -= 1

    async def _respond(self, args: tuple[object, ...]) -> object:
        node_id = args[0]
        assert isinstance(node_id, int)
        if node_id in self.late:
            await self.late[node_id].wait()
        await asyncio.sleep(0)
        if node_id in self.refused:
            raise AuthenticationRefused(REFUSAL)
        return [ListedGroup(f"g-{node_id}", "classic", "Stable", "consumer", node_id)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_responses, "GRACE_S", 0.2)


async def listed(last: LastGroups, cluster: Cluster, of: Coordinators, user: str = "u") -> set[str]:
    found = await last.listed(cluster, of.call, user)
    return {group.group for group in found.groups}


async def test_a_limited_number_of_coordinators_is_queried_at_a_time() -> None:
    coordinators = Coordinators()
    found = await listed(LastGroups(), Cluster(100), coordinators)
    assert (len(found), coordinators.most_at_once) == (100, AT_ONCE)


@pytest.mark.usefixtures("impatient")
async def test_a_slow_coordinator_hides_no_groups_and_its_response_is_used_later() -> None:
    coordinators, last, cluster = Coordinators(), LastGroups(), Cluster(3)
    coordinators.late = {2: asyncio.Event()}
    found = await last.listed(cluster, coordinators.call, "u")
    assert ({group.group for group in found.groups}, found.ages_s) == ({"g-1", "g-3"}, {2: None})
    await last.listed(cluster, coordinators.call, "u")
    assert coordinators.at_once == 1, "one request at a time"
    coordinators.late.pop(2).set()
    await until(lambda: not coordinators.at_once)
    coordinators.late = {2: asyncio.Event()}
    found = await last.listed(cluster, coordinators.call, "u")
    assert {group.group for group in found.groups} == {"g-1", "g-2", "g-3"}
    assert found.ages_s[2] is not None
    assert await listed(last, cluster, coordinators, "other") == {"g-1", "g-3"}
    last.drop("u")
    assert await listed(last, cluster, coordinators) == {"g-1", "g-3"}


async def test_a_coordinator_that_rejects_the_user_hides_no_other_groups() -> None:
    coordinators, cluster = Coordinators(), Cluster(2)
    coordinators.refused = {1}
    found = await LastGroups().listed(cluster, coordinators.call, "u")
    assert {group.group for group in found.groups} == {"g-2"}
    assert (found.refused, found.ages_s) == ({1: REFUSAL}, {})
    coordinators.refused = {1, 2}
    with pytest.raises(AuthenticationRefused, match="rejects the password"):
        await LastGroups().listed(cluster, coordinators.call, "u")


async def test_all_other_errors_are_raised() -> None:
    async def busy() -> int:
        raise Busy("busy")

    responses: BrokerResponses[int, int] = BrokerResponses()
    with pytest.raises(Busy):
        await responses.send_request("u", {1: busy})


async def test_cached_responses_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_responses, "KEPT_MAX", 3)

    async def one() -> int:
        return 1

    responses: BrokerResponses[int, int] = BrokerResponses()
    requests: dict[int, Callable[[], Awaitable[int]]] = dict.fromkeys(range(5), one)
    assert len((await responses.send_request("u", requests)).last) == 5
    assert len((await responses.send_request("u", {})).last) == 3


# --- end offsets ----------------------------------------------------------------------------------


class Brokers:
    """Measure one broker; hangs for addresses in `hung` until they are released."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.hung: dict[str, threading.Event] = {}
        self.refused: set[str] = set()
        self.requested: list[str] = []

    def measure(self, address: str, _led: Led) -> Measured:
        self.requested.append(address)
        requested_at = self._clock.now
        if address in self.hung:
            self.hung[address].wait()
        if address in self.refused:
            return Measured(requested_at, refusal=REFUSAL)
        return Measured(requested_at, {"t": {0: 1}}, responded=True)


async def test_the_age_of_a_response_counts_from_its_request() -> None:
    clock = Clock()
    brokers = Brokers(clock)
    watch = BrokerWatch(brokers.measure, clock)
    hung = brokers.hung["b1"] = threading.Event()
    addresses = {1: "b1", 2: "b2"}
    try:
        assert len(await watch.measured(addresses, {})) == 1
        assert (watch.age_s(1), watch.age_s(2)) == (0.0, 0.0)
        clock.now += 60  # The process is suspended; then the response arrives.
        assert (watch.waiting_s(1), watch.waiting_s(2)) == (60.0, 0.0)
    finally:
        hung.set()
    found = await watch.measured({1: "b1"}, {})
    assert [each.requested_at for each in found] == [100.0]
    assert (watch.age_s(1), watch.waiting_s(1)) == (60.0, 0.0)
    await watch.close()


async def test_end_offsets_do_not_use_threads_of_other_calls() -> None:
    """More brokers hang than the default executor has threads."""
    clock = Clock()
    brokers = Brokers(clock)
    watch = BrokerWatch(brokers.measure, clock)
    addresses = {number: f"b{number}" for number in range(100)}
    release = threading.Event()
    brokers.hung = dict.fromkeys(addresses.values(), release)
    try:
        assert await watch.measured(addresses, {}) == []
        assert await asyncio.to_thread(lambda: 1) == 1
        clock.now += 60
        waiting = sum(watch.waiting_s(number) > 0 for number in addresses)
        assert waiting == len(brokers.requested), "a request that was not sent does not wait"
        assert waiting < len(addresses)
    finally:
        release.set()
        await watch.close()


async def test_a_broker_that_rejects_the_console_does_not_count_as_silent() -> None:
    clock = Clock()
    brokers = Brokers(clock)
    watch = BrokerWatch(brokers.measure, clock)
    brokers.refused = {"b1"}
    await watch.measured({1: "b1"}, {})
    await watch.measured({1: "b1"}, {})
    assert len(brokers.requested) == 1, "it is not asked again at once"
    clock.now += 5
    assert (watch.waiting_s(1), watch.age_s(1), watch.refusal(1)) == (0.0, 5.0, REFUSAL)
    health = BrokerHealth(1, False, None, None, 0.0, 5.0, None, REFUSAL)
    assert not health.is_silent
    (problem,) = diagnose(0.0, {1: health}, None, 0).problems
    assert problem.title == "Broker 1 rejects this console"
    assert REFUSAL in problem.text
    titles = [each.title for each in diagnose(9.0, {1: health}, None, 0).problems]
    assert titles == ["The controllers do not respond", problem.title]
    clock.now += REFUSED_S
    brokers.refused = set()
    await watch.measured({1: "b1"}, {})
    assert (watch.age_s(1), watch.refusal(1)) == (0.0, "")
    await watch.close()


# --- store ----------------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """Time passes while it responds."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.takes_s = 0.0
        self.error: Exception | None = None

    async def head(self, key: str) -> ObjectInfo:
        self._clock.now += self.takes_s
        if self.error is not None:
            raise self.error
        return await super().head(key)


async def test_the_time_of_a_store_response_is_that_of_its_request() -> None:
    clock = Clock()
    store = SlowStore(clock)
    probe = StoreProbe("s3://bucket", lambda _: store, clock)
    assert probe.health() is None
    running = asyncio.create_task(probe.run())
    await asyncio.sleep(0)
    assert probe.health() == StoreHealth(0.0)
    store.takes_s = 60.0  # the process pauses while the request is in flight
    await probe.check()
    assert probe.health() == StoreHealth(60.0)
    store.takes_s, store.error = 0.0, OSError("no route")
    await probe.check()
    assert probe.health() == StoreHealth(0.0, "no route")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert probe.health() is None
    await probe.close()


def test_the_session_of_a_broker_fenced_meanwhile_is_shown_as_ended() -> None:
    """The session of a broker that is starting is shown although the broker is still fenced."""
    image = MetadataImage()
    loads: dict[NodeId, BrokerLoad] = {}
    for number, is_fenced in enumerate((False, True, True)):
        node, epoch = NodeId(number), NodeEpoch(7)
        record = NodeRecord(node, epoch, UUID(int=number), "", 1, "", None, fenced=is_fenced)
        image.apply_all([record])
        session = BrokerSession(state="open", heartbeat_age_ms=9, ends_in_ms=9)
        loads[node] = BrokerLoad(node_id=node, load=Load(0, 0, 0), leaders=0, session=session)
    alive = {(NodeId(0), NodeEpoch(7)), (NodeId(1), NodeEpoch(7)), (NodeId(2), NodeEpoch(6))}
    assert open_sessions(image, loads, alive).keys() == {0, 2}
