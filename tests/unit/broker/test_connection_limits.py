"""Connection limits: which connections wait, which are closed, and that others are served
meanwhile. The test controls the time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Self

import pytest

from penstock.broker.config import BrokerConfig
from penstock.broker.network import admission
from penstock.broker.network.admission import Admission
from penstock.broker.network.server import Server
from penstock.broker.quotas import connections
from penstock.broker.quotas.connections import (
    Connections,
    ConnectionSettings,
    ListenerLimits,
    parse_overrides,
)
from penstock.broker.quotas.rates import Window
from tests.support.listener import Client, Echo, ManualTimer, connect
from tests.support.waiting import PATIENCE_S, until


class Time:
    """A clock with the timers that are due on it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[ManualTimer] = []

    def now(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> ManualTimer:
        self.timers.append(ManualTimer(self.now_s + delay_s, call))
        return self.timers[-1]

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        due = [timer for timer in self.timers if timer.due_s <= self.now_s]
        self.timers = [timer for timer in self.timers if timer.due_s > self.now_s]
        for timer in due:
            if not timer.is_cancelled:
                timer.call()


@dataclass(eq=False)
class Guest:
    """A connection that records what happens to it."""

    listener: str = "A"
    peer_host: str = "10.0.0.1"
    last_request_at: float = 0.0
    state: str = "new"

    def admitted(self) -> None:
        self.state = "in"

    def held(self) -> None:
        self.state = "held"

    def close(self, reason: str) -> None:
        self.state = f"closed: {reason}"


class Door:
    def __init__(self, **settings: Any) -> None:
        self.time = Time()
        self.admission = Admission(Connections(Window()), self.time.now, self.time.call_later)
        self.admission.configure(ConnectionSettings(**settings))

    def come(self, listener: str = "A", host: str = "10.0.0.1", at: float = 0.0) -> Guest:
        guest = Guest(listener, host, at)
        self.admission.arrive(guest)
        return guest

    def come_all(self, count: int) -> list[str]:
        return [self.come().state for _ in range(count)]


def test_connections_above_the_limit_wait_in_order() -> None:
    door = Door(broker=ListenerLimits(connections=2))
    guests = [door.come() for _ in range(4)]
    assert [guest.state for guest in guests] == ["in", "in", "held", "held"]
    door.admission.gone(guests[0])
    assert [guest.state for guest in guests[2:]] == ["in", "held"]
    door.admission.gone(guests[3])
    door.admission.gone(guests[1])
    assert door.come().state == "in"
    assert (door.admission.held_count, door.admission.connections.total_count) == (0, 2)


def test_a_full_listener_does_not_affect_other_listeners() -> None:
    door = Door(listeners={"A": ListenerLimits(connections=1)})
    assert [door.come(name).state for name in "AAB"] == ["in", "held", "in"]


def test_a_higher_limit_admits_waiting_connections() -> None:
    door = Door(broker=ListenerLimits(connections=1))
    guests = [door.come() for _ in range(3)]
    door.admission.configure(ConnectionSettings(broker=ListenerLimits(connections=2)))
    assert [guest.state for guest in guests] == ["in", "in", "held"]


def test_the_number_of_waiting_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "HELD_MAX", 2)
    door = Door(broker=ListenerLimits(connections=1))
    assert door.come_all(4)[:3] == ["in", "held", "held"]
    assert door.come().state.startswith("closed: too many connections wait")


def test_the_inter_broker_listener_evicts_an_idle_client() -> None:
    door = Door(broker=ListenerLimits(connections=2), protected="B")
    busy, idle = door.come(at=5.0), door.come(at=1.0)
    for guest in (busy, idle):
        door.admission.authenticated(guest)
    broker = door.come("B")
    assert (broker.state, busy.state) == ("in", "in")
    assert idle.state.startswith("closed: a broker needs the connection")
    door.admission.gone(idle)
    assert door.come("A").state == "held"


def test_connections_above_the_limit_per_address_are_closed() -> None:
    door = Door(per_address=2, by_address={"10.0.0.2": 1, "10.0.0.3": 0})
    guests = [door.come() for _ in range(2)]
    assert door.come().state.startswith("closed: more than 2 connections of one address")
    assert door.come(host="10.0.0.2").state == "in"
    assert door.come(host="10.0.0.2").state.startswith("closed: more than 1 ")
    assert door.come(host="10.0.0.3").state.startswith("closed: more than 0 ")
    door.admission.gone(guests[0])
    assert door.come().state == "in"


def test_connections_above_the_creation_rate_wait() -> None:
    """As in Kafka, ten seconds of the rate may arrive at once; after that, each connection waits
    for at most one sample.
    """
    door = Door(broker=ListenerLimits(creation_rate=1))
    assert door.come_all(12) == ["in"] * 10 + ["held"] * 2
    assert [timer.due_s for timer in door.time.timers] == [1.0]
    door.time.pass_s(1.0)
    assert door.admission.held_count == 1
    door.time.pass_s(1.0)
    assert door.admission.held_count == 0
    assert door.admission.connections.total_count == 12


def test_a_creation_rate_of_a_single_listener() -> None:
    door = Door(listeners={"A": ListenerLimits(creation_rate=1)})
    for _ in range(10):
        door.come("A")
    assert [door.come(name).state for name in "AB"] == ["held", "in"]


def test_a_connection_above_the_rate_of_its_address_is_closed_after_a_wait() -> None:
    door = Door()
    door.admission.connections.set_address_quotas({"10.0.0.1": 1.0}, 2.0)
    assert door.come_all(11) == ["in"] * 10 + ["held"]
    assert door.come(host="10.0.0.2").state == "in"
    late = door.come()
    assert door.admission.connections.total_count == 11
    door.time.pass_s(1.0)
    assert late.state == "closed: the address connects too often (quota connection_creation_rate)"
    door.time.pass_s(10.0)
    assert door.come().state == "in"


def test_the_number_of_tracked_addresses_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ADDRESSES_MAX", 2)
    door = Door()
    door.admission.connections.set_address_quotas({}, 0.1)
    assert [door.come(host=host).state for host in "aabc"] == ["in", "held", "in", "in"]
    assert door.come(host="a").state == "in"


def test_a_connection_that_closes_while_it_waits_is_dropped() -> None:
    door = Door(broker=ListenerLimits(connections=1))
    guests = [door.come() for _ in range(3)]
    door.admission.gone(guests[1])
    door.admission.gone(guests[0])
    assert guests[2].state == "in"


def states(guests: list[Guest]) -> list[str]:
    return [guest.state.partition(":")[0] for guest in guests]


def test_a_flood_replaces_its_own_unauthenticated_connections() -> None:
    door = Door(unauthenticated=4)
    client, user = door.come(host="10.0.0.2"), door.come(host="10.0.0.3")
    door.admission.authenticated(user)
    flood = [door.come() for _ in range(9)]
    assert states([client, user]) == ["in", "in"]
    assert states(flood) == ["closed"] * 6 + ["in"] * 3
    assert door.admission.unauthenticated_count == 4


def test_addresses_of_one_ipv6_network_share_a_limit() -> None:
    door = Door(unauthenticated=3)
    client = door.come(host="2001:db8:1::1")
    flood = [door.come(host=f"2001:db8:2::{number}") for number in range(5)]
    assert client.state == "in"
    assert states(flood) == ["closed"] * 3 + ["in"] * 2


def test_a_flood_from_many_addresses_closes_the_oldest_connection() -> None:
    door = Door(unauthenticated=3)
    guests = [door.come(host=f"10.0.1.{number}") for number in range(5)]
    assert states(guests) == ["closed"] * 2 + ["in"] * 3


def test_a_flood_on_one_listener_does_not_affect_other_listeners() -> None:
    door = Door(unauthenticated=2, protected="B")
    broker = door.come("B")
    flood = [door.come("A") for _ in range(5)]
    assert broker.state == "in"
    assert states(flood) == ["closed"] * 3 + ["in"] * 2
    assert door.come("B").state == "in"


@pytest.mark.parametrize(
    "settings",
    [
        {"broker": ListenerLimits(connections=3)},
        {"listeners": {"A": ListenerLimits(connections=3)}},
    ],
)
def test_connections_of_a_flood_are_replaced_by_other_addresses_at_the_limit(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HELD_MAX", 2)
    door = Door(**settings)
    flood = [door.come() for _ in range(6)]
    assert states(flood) == ["in"] * 3 + ["held"] * 2 + ["closed"]
    client = door.come(host="10.0.0.2")
    assert (client.state, flood[0].state[:6]) == ("in", "closed")
    door.admission.gone(flood[0])
    assert states(flood[1:5]) == ["in"] * 2 + ["held"] * 2


def test_a_waiting_flood_does_not_take_all_waiting_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "HELD_MAX", 2)
    door = Door(broker=ListenerLimits(connections=1))
    user = door.come(host="10.0.0.3")
    door.admission.authenticated(user)
    flood = [door.come() for _ in range(2)]
    client = door.come(host="10.0.0.2")
    assert states([user, *flood, client]) == ["in", "closed", "held", "held"]


def test_a_broker_evicts_unauthenticated_connections_first() -> None:
    door = Door(broker=ListenerLimits(connections=2), protected="B")
    user, stranger = door.come(at=1.0), door.come(at=5.0)
    door.admission.authenticated(user)
    assert door.come("B").state == "in"
    assert states([user, stranger]) == ["in", "closed"]


def test_overrides_per_address_are_parsed() -> None:
    assert parse_overrides(["10.0.0.1:5", "[::1]:7", "::2:9"]) == {
        "10.0.0.1": 5,
        "::1": 7,
        "::2": 9,
    }
    for wrong in ("10.0.0.1", ":5", "10.0.0.1:b", "10.0.0.1:-1", "somewhere:5"):
        with pytest.raises(ValueError, match=r"ADDRESS:COUNT|IPv4"):
            parse_overrides([wrong])


# --- sockets --------------------------------------------------------------------------------------


class Sockets:
    def __init__(self, **settings: Any) -> None:
        self.server = Server(BrokerConfig(listeners=("127.0.0.1:0",), **settings))
        self.clients: list[Client] = []

    async def __aenter__(self) -> Self:
        await self.server.bind()
        await self.server.serve(Echo())
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self.clients:
            client.writer.close()
        await self.server.close()

    async def connect(self, frame: bytes) -> Client:
        self.clients.append(await connect(self.server.port))
        self.clients[-1].send(frame)
        return self.clients[-1]


@pytest.fixture
async def sockets() -> AsyncIterator[Sockets]:
    async with Sockets(connections_max=2) as sockets:
        yield sockets


async def test_a_waiting_connection_is_served_when_another_one_closes(sockets: Sockets) -> None:
    first, second = await sockets.connect(b"first"), await sockets.connect(b"second")
    assert [await first.receive(), await second.receive()] == [b"first", b"second"]
    third = await sockets.connect(b"third")
    await until(lambda: sockets.server.admission.held_count == 1)
    received = sockets.server.received_bytes
    second.send(b"again")
    assert await second.receive() == b"again"
    assert sockets.server.received_bytes - received == 9
    first.writer.close()
    assert await third.receive() == b"third"


async def test_connections_per_address_are_limited() -> None:
    async with Sockets(connections_per_ip_max=1) as sockets:
        first = await sockets.connect(b"first")
        assert await first.receive() == b"first"
        second = await sockets.connect(b"second")
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                assert await second.reader.read() == b""
        assert sockets.server.admission.refused_count == 1
        first.send(b"still")
        assert await first.receive() == b"still"
