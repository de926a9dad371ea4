"""List groups and their lag, from all coordinators at once, so that one that does not respond
delays nothing and hides no groups of others.

Limits: the last known groups of KEPT_MAX pairs of user and broker.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, ParamSpec, Protocol, TypeVar

from penstock.deploy.admin.groups.admin import groups_of, listed_groups
from penstock.deploy.admin.groups.lags import KnownEnds, group_lags
from penstock.deploy.admin.groups.views import ListedGroup, OffsetView
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.console.live import LiveCluster
from penstock.deploy.errors import KafkaFailed, NoResponse

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Call(Protocol):
    """Calls a function that blocks, as the user of a request, as `Console.call` does."""

    async def __call__(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T: ...


GRACE_S: Final = 1.0
"""Longest wait for a coordinator whose groups are known from before."""
KEPT_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class GroupList:
    """groups: by name. ages_s: of what is known from before, by coordinator; None: nothing is."""

    groups: list[ListedGroup]
    ages_s: dict[int, float | None]


class LastGroups:
    """The last known groups by user and coordinator."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, int], tuple[list[ListedGroup], float]] = OrderedDict()

    async def listed(self, live: LiveCluster, call: Call, user: str) -> GroupList:
        """Return the groups. user: who may see them. Raises KafkaFailed if nobody responds."""
        addresses = live.addresses()
        if not addresses:
            found = await call(_listed, live.bootstrap())
            return GroupList(found, {})
        silent = live.silent_brokers()
        asking = {
            node_id: asyncio.create_task(call(_groups_at, node_id, address))
            for node_id, address in addresses.items()
            if node_id not in silent
        }
        if asking:
            _, late = await asyncio.wait(asking.values(), timeout=GRACE_S)
            is_all_late = len(late) == len(asking)
            if is_all_late:
                await asyncio.wait(asking.values())
        refused: KafkaFailed | None = None
        for node_id, task in asking.items():
            if not task.done():
                task.add_done_callback(_take_exception)
                continue
            error = task.exception()
            if error is None:
                self._keep(user, node_id, task.result())
                continue
            if not isinstance(error, KafkaFailed):
                raise error
            if not isinstance(error, NoResponse):
                refused = error
        if refused is not None:
            raise refused
        return self._all(user, addresses, asking)

    def _all(
        self,
        user: str,
        addresses: "dict[int, str]",
        asking: "dict[int, asyncio.Task[list[ListedGroup]]]",
    ) -> GroupList:
        found: dict[str, ListedGroup] = {}
        ages: dict[int, float | None] = {}
        responded = {
            node_id for node_id, task in asking.items() if task.done() and task.exception() is None
        }
        for node_id in sorted(addresses, key=lambda each: each in responded):
            last = self._last.get((user, node_id))
            if last is not None:
                found |= {group.group: group for group in last[0]}
            if node_id not in responded:
                ages[node_id] = None if last is None else time.monotonic() - last[1]
        if not responded and not found:
            raise NoResponse("no coordinator of groups responds")
        return GroupList(sorted(found.values(), key=lambda group: group.group), ages)

    def _keep(self, user: str, node_id: int, groups: list[ListedGroup]) -> None:
        self._last[user, node_id] = groups, time.monotonic()
        self._last.move_to_end((user, node_id))
        while len(self._last) > KEPT_MAX:
            self._last.popitem(last=False)


async def lags_of(
    live: LiveCluster, call: Call, groups: Sequence[ListedGroup]
) -> dict[str, int | None]:
    """Return the lags of groups whose coordinators respond."""
    addresses, silent = live.addresses(), live.silent_brokers()
    asking = [
        asyncio.create_task(
            call(
                _lags_at,
                address,
                [group for group in groups if group.coordinator == node_id],
                live.ends,
            )
        )
        for node_id, address in addresses.items()
        if node_id not in silent and any(group.coordinator == node_id for group in groups)
    ]
    if asking:
        await asyncio.wait(asking, timeout=GRACE_S)
    found: dict[str, int | None] = {}
    for task in asking:
        if not task.done():
            task.add_done_callback(_take_exception)
        elif task.exception() is None:
            found |= task.result()
    return found


def with_known_end(item: OffsetView, end: int | None) -> OffsetView:
    """Return the offsets of a partition with its last known end, if its leader does not respond."""
    if item.log_end_offset is not None or end is None:
        return item
    current = item.current_offset
    return replace(item, log_end_offset=end, lag=None if current is None else max(0, end - current))


def known_lag(offsets: Sequence[OffsetView]) -> int | None:
    """Return the lag of a group, None if that of a partition is not known."""
    lags = [item.lag for item in offsets if item.current_offset is not None]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


def _groups_at(node_id: int, address: str) -> list[ListedGroup]:
    with WireClient(address) as client:
        return groups_of(node_id, client)


def _lags_at(address: str, groups: Sequence[ListedGroup], ends: KnownEnds) -> dict[str, int | None]:
    with WireClient(address) as client:
        return group_lags(client, groups, ends)


def _listed(bootstrap: str) -> list[ListedGroup]:
    with Brokers(bootstrap) as brokers:
        return listed_groups(brokers)


def _take_exception(task: "asyncio.Task[object]") -> None:
    """Take the exception of a request that nobody waits for; asyncio would log it."""
    if not task.cancelled():
        task.exception()
