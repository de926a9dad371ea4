"""List groups and their lag from all coordinators concurrently, so that a coordinator that does not
respond does not delay or hide the groups of others.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, ParamSpec, Protocol, TypeVar

from penstock.deploy.admin.groups.admin import groups_of, listed_groups
from penstock.deploy.admin.groups.lags import KnownEnds, progress_of
from penstock.deploy.admin.groups.views import ListedGroup, OffsetView
from penstock.deploy.clients.brokers import Brokers
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.console.broker_responses import BrokerResponses, ResponseSet
from penstock.protocol.client.errors import NoResponse

LAG_S: Final = 8.0
"""Age from which a lag is no longer displayed. The page requests lags every 5 s."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Call(Protocol):
    """Calls a blocking function as the user of a request, like `Console.call`."""

    async def __call__(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T: ...


class Coordinators(Protocol):
    """The brokers of a cluster, implemented by `LiveCluster`."""

    def addresses(self) -> dict[int, str]: ...
    def silent_brokers(self) -> frozenset[int]: ...
    def bootstrap(self) -> str: ...
    def ends(self, topic: str) -> Mapping[int, int]: ...


@dataclass(frozen=True, slots=True)
class GroupList:
    """groups: by name. ages_s: by coordinator that does not respond, the age of its last known
    groups; None if none are known. refused: by coordinator that rejected the request, the reason.
    """

    groups: list[ListedGroup]
    ages_s: dict[int, float | None]
    refused: dict[int, str] = field(default_factory=dict[int, str])


class LastGroups:
    """The last known groups and lags by user and coordinator."""

    def __init__(self) -> None:
        self._groups: BrokerResponses[int, list[ListedGroup]] = BrokerResponses()
        self._lags: BrokerResponses[tuple[int, tuple[str, ...]], Mapping[str, int | None]] = (
            BrokerResponses()
        )

    def drop(self, user: str) -> None:
        """Drop everything that is cached for a user."""
        self._groups.drop(user)
        self._lags.drop(user)

    async def listed(self, live: Coordinators, call: Call, user: str) -> GroupList:
        """Return the groups that the user may see. Raises KafkaFailed if no coordinator responds,
        or all reject the request.
        """
        addresses = live.addresses()
        if not addresses:
            return GroupList(await call(_listed, live.bootstrap()), {})
        silent = live.silent_brokers()
        found = await self._groups.send_request(
            user,
            {
                node_id: _request_of_groups(call, node_id, address)
                for node_id, address in addresses.items()
                if node_id not in silent
            },
            waits_for_first=True,
        )
        return _group_list(addresses, found)

    async def lags(
        self, live: Coordinators, call: Call, user: str, groups: Sequence[ListedGroup]
    ) -> dict[str, int | None]:
        """Return the lags of groups whose coordinators respond."""
        addresses, silent = live.addresses(), live.silent_brokers()
        coordinated: dict[int, list[ListedGroup]] = {}
        for group in groups:
            coordinated.setdefault(group.coordinator, []).append(group)
        found = await self._lags.send_request(
            user,
            {
                (node_id, tuple(group.group for group in of)): _request_of_lags(
                    call, addresses[node_id], of, live.ends
                )
                for node_id, of in coordinated.items()
                if node_id in addresses and node_id not in silent
            },
        )
        now, names = time.monotonic(), {group.group for group in groups}
        return {
            name: lag
            for response in sorted(found.last.values(), key=lambda each: each.requested_at)
            if now - response.requested_at < LAG_S
            for name, lag in response.value.items()
            if name in names
        }


def _group_list(
    addresses: Mapping[int, str], found: ResponseSet[int, list[ListedGroup]]
) -> GroupList:
    now = time.monotonic()
    groups: dict[str, ListedGroup] = {}
    ages: dict[int, float | None] = {}
    for node_id in sorted(addresses, key=lambda each: each in found.fresh):
        last = found.last.get(node_id)
        if last is not None:
            groups |= {group.group: group for group in last.value}
        if node_id not in found.fresh and node_id not in found.refused:
            ages[node_id] = None if last is None else now - last.requested_at
    if not found.fresh and not groups:
        raise next(iter(found.refused.values()), NoResponse("no coordinator of groups responds"))
    refused = {node_id: str(error) for node_id, error in found.refused.items()}
    return GroupList(sorted(groups.values(), key=lambda group: group.group), ages, refused)


def with_known_end(item: OffsetView, end: int | None) -> OffsetView:
    """Return the offsets of a partition, with its last known end if the leader does not respond."""
    if item.log_end_offset is not None or end is None:
        return item
    current = item.current_offset
    return replace(item, log_end_offset=end, lag=None if current is None else max(0, end - current))


def _request_of_groups(
    call: Call, node_id: int, address: str
) -> Callable[[], Awaitable[list[ListedGroup]]]:
    return lambda: call(_groups_at, node_id, address)


def _request_of_lags(
    call: Call, address: str, groups: Sequence[ListedGroup], ends: KnownEnds
) -> Callable[[], Awaitable[Mapping[str, int | None]]]:
    return lambda: call(_lags_at, address, groups, ends)


def _groups_at(node_id: int, address: str) -> list[ListedGroup]:
    with WireClient(address) as client:
        return groups_of(node_id, client)


def _lags_at(address: str, groups: Sequence[ListedGroup], ends: KnownEnds) -> dict[str, int | None]:
    with WireClient(address) as client:
        return {name: known.lag(ends) for name, known in progress_of(client, groups).items()}


def _listed(bootstrap: str) -> list[ListedGroup]:
    with Brokers(bootstrap) as brokers:
        return listed_groups(brokers).groups
