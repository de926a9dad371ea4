"""A scenario in which requests of every API arrive late, and nothing else fails.

Clients and brokers give up on a share of their requests: they resend them over a newer connection,
and the first copy arrives up to `LATE_S` later, followed by the end of its connection. Each
`Exchange` uses some APIs until enough copies of each were overtaken, and judges the responses.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.protocol import apis
from tests.sim.connections import Connection, NoResponse

if TYPE_CHECKING:
    from tests.sim.directed import Script
    from tests.sim.world import World

OVERTAKEN: Final = "overtaken"
COPIES_MIN: Final = 5
"""Number of overtaken copies of each API in a run."""
LATE_S: Final = 1.5
"""Maximum delay of a copy."""
_GIVEN_UP_SHARE: Final = 0.6
_FURTHER_SHARE: Final = 0.1
"""The share for an API of which enough copies were overtaken."""
_DELAYS_S: Final = (0.02, 0.2, 1.0)
_ROUNDS_MAX: Final = 60

Act: TypeAlias = "Callable[[Script, Random, int], Awaitable[None]]"


class Overtaken:
    """The first copies of requests that were resent."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        """Copies that arrived after the response to a later one, by API."""
        self._arrivals = set[asyncio.Task[None]]()

    def leave(self, connection: "RepeatingConnection", request: Any, delay_s: float) -> "Copy":
        """Let a request arrive over an abandoned connection."""
        left = Copy(connection, request[0].name, self.counts)
        arrival = asyncio.get_running_loop().create_task(left.arrive(request, delay_s))
        self._arrivals.add(arrival)
        arrival.add_done_callback(self._arrivals.discard)
        return left

    async def arrived(self) -> None:
        """Wait until no copy is in flight."""
        while self._arrivals:
            await asyncio.wait(self._arrivals)


class Copy:
    """A request that its sender has resent."""

    def __init__(self, connection: "RepeatingConnection", name: str, counts: Counter[str]) -> None:
        self.is_overtaken = False
        """The sender has a response to a later copy."""
        self._connection = connection
        self._name = name
        self._counts = counts

    async def arrive(self, request: Any, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        connection = self._connection
        is_served = connection.broker.serving and not connection.broker.process.dead
        self._counts[self._name] += self.is_overtaken and is_served
        with suppress(NoResponse):
            # The connection ends immediately afterwards, or later.
            api, version, message = request
            await Connection.send_request(
                connection, api, version, message, connection.rng.choice((0.0, 5.0))
            )
        connection.close()


class RepeatingConnection(Connection):
    """A logical connection of a client or broker, which it replaces with newer ones."""

    def __init__(self, world: "World", broker: Any) -> None:
        super().__init__(world, broker)
        self.rng = Random(f"{world.seed}/repeating/{self.id}")

    async def send_request(self, api: Any, version: int, message: Any, timeout_s: float) -> Any:
        """Send a request, sometimes with a late copy. Raises NoResponse."""
        left = None
        is_enough = self._world.overtaken.counts[api.name] >= COPIES_MIN
        share = _FURTHER_SHARE if is_enough else _GIVEN_UP_SHARE
        if _is_repeatable(api, message) and self.rng.random() < share:
            delay_s = self.rng.choice(_DELAYS_S) * self.rng.uniform(0.5, 1.5)
            left = self.leave_behind((api, version, message), delay_s)
        response = await super().send_request(api, version, message, timeout_s)
        if left is not None:
            left.is_overtaken = True
        return response

    def leave_behind(self, request: Any, delay_s: float) -> Copy:
        """Open a newer connection, and let the request arrive over the current one."""
        old = copy(self)
        Connection.__init__(self, self._world, self.broker)
        return self._world.overtaken.leave(old, request, delay_s)


_SESSIONS: Final = frozenset({apis.FETCH.key, apis.SHARE_FETCH.key, apis.SHARE_ACKNOWLEDGE.key})


def _is_repeatable(api: Any, message: Any) -> bool:
    """Return False for requests whose copies the exchanges send themselves, because the next
    request differs, and for those that fence or delay their own sender, as in Kafka.
    """
    if api.key == apis.INIT_PRODUCER_ID.key:
        return bool(message.producer_id >= 0)
    if api.key == apis.FETCH.key:
        return bool(message.session_epoch < 0)
    if api.key == apis.JOIN_GROUP.key:
        return bool(message.member_id)
    return api.key not in _SESSIONS


@dataclass(frozen=True, slots=True)
class Exchange:
    """The requests that senders of some APIs make in each round."""

    act: Act
    apis: Sequence[Any]

    async def run(self, script: "Script") -> None:
        try:
            await self._run(script)
        except (AssertionError, NoResponse) as error:
            script.world.fail(f"{self.act.__name__}: {error!r}")

    async def _run(self, script: "Script") -> None:
        counts, missing = script.world.overtaken.counts, dict[str, int]()
        rng = Random(f"{script.world.seed}/{self.act.__name__}")
        for number in range(_ROUNDS_MAX):
            missing = {api.name: counts[api.name] for api in self.apis}
            if min(missing.values()) >= COPIES_MIN:
                return
            await self.act(script, rng, number)
        script.world.fail(f"too few copies are overtaken in {_ROUNDS_MAX} rounds: {missing}")


async def exchange_all(script: "Script", exchanges: Sequence[Exchange]) -> None:
    """Run all exchanges concurrently, and wait until every copy has arrived."""
    async with asyncio.TaskGroup() as group:
        for exchange in exchanges:
            group.create_task(exchange.run(script))
    await script.world.overtaken.arrived()
