"""Administrators add and remove ACLs and create, renew and expire tokens while controllers fail.

Each ACL and token is added and removed once, by one administrator. Acknowledged changes are in the
committed metadata, a removed ACL never returns, and no other ACL is removed with it
(CVE-2024-27309). Requests may arrive late or twice.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.base.acls import Operation, PatternType, Permission, ResourceType
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError, RequestRefused
from penstock.controller.api.messages import CreateAcls, DeleteAcls, Status
from penstock.controller.api.token_messages import (
    CreateDelegationToken,
    ExpireDelegationToken,
    RenewDelegationToken,
)
from penstock.controller.metadata.acls import AclFilter
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import AclEntry
from tests.sim.control import addresses
from tests.sim.limits import Limits
from tests.sim.loop import Process

if TYPE_CHECKING:
    from tests.sim.world import World

RULED: Final = frozenset({"acls"})
"""Scenarios with these administrators."""
CONTROLLERS: Final = 3
_ADMINS: Final = 4
_HOLDERS: Final = 2
"""Number of token holders."""
_OWNER: Final = "User:alice"
_PERIOD_MS: Final = 30 * 86_400_000
"""No token expires during a run."""

_Ruled = AclEntry | str
"""An ACL, or the id of a token."""
_COPIES_LATE_S: Final = 20.0
"""Long enough for two leader changes; copies go to the controller to which the request was sent."""
_REPLY_CACHE_COUNT_MAX: Final = 4_096
"""The default value of controllers."""


def ruled_limits(drawn: Limits) -> Limits:
    """Return limits with few records, which do not matter here. The network duplicates requests,
    and controllers remember replies long enough for that.
    """
    return replace(
        drawn,
        controllers=CONTROLLERS,
        brokers=2,
        partitions=1,
        producers=1,
        network_lossy=max(drawn.network_lossy, 0.01),
        controller=msgspec.structs.replace(
            drawn.controller, reply_cache_count_max=_REPLY_CACHE_COUNT_MAX
        ),
    )


class AclAdmins:
    """All administrators of one run; does nothing in other scenarios."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/acl admins")
        self._pace_s = self._rng.choice((0.02, 0.2, 1.0))
        self._kept: dict[_Ruled, int] = {}
        """What is there, with the end of the metadata log at the time of the response."""
        self._removed: dict[_Ruled, int] = {}
        """Removed entries, with the offset of their removal."""
        self._process: Process
        self._client: ControllerClient

    def run(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        world = self._world
        if world.scenario not in RULED:
            return []
        self._process = Process("acl admins")
        self._process.network = world.network
        world.processes.append(self._process)
        world.network.copies_late_s = _COPIES_LATE_S
        self._client = self._process.context().run(
            lambda: ControllerClient(addresses(world.limits.controllers), rng=self._rng)
        )
        rule = [self._rule(number, stop) for number in range(_ADMINS)]
        hold = [self._hold(number, stop) for number in range(_HOLDERS)]
        return [self._here(work) for work in (*rule, *hold)]

    def look(self, image: MetadataImage) -> None:
        """Check the committed metadata."""
        self._compare("the metadata", image, self._world.metadata.end_offset)

    async def check(self) -> None:
        """Wait until every broker has the committed metadata, and check it."""
        if self._world.scenario not in RULED:
            return
        end_offset = self._world.metadata.end_offset
        while self._is_behind(end_offset):  # noqa: ASYNC110 - virtual time is free
            await asyncio.sleep(0.2)
        self._look_at_brokers()

    def _is_behind(self, end_offset: int) -> bool:
        return any(image.end_offset < end_offset for image in self._images().values())

    async def _here(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in the administrators' own process."""
        await self._world.loop.create_task(work, context=self._process.context())

    async def _rule(self, number: int, stop: asyncio.Event) -> None:
        serial = 0
        while not stop.is_set():
            serial += 1
            acl = AclEntry(
                ResourceType.TOPIC,
                PatternType.LITERAL,
                "t",
                f"User:{number}-{serial}",
                "*",
                Operation.WRITE,
                Permission.ALLOW,
            )
            if await self._add(acl):
                await self._pause()
                await self._remove(acl)
            await self._pause()

    async def _hold(self, number: int, stop: asyncio.Event) -> None:
        serial = 0
        while not stop.is_set():
            serial += 1
            token_id = f"{number}-{serial}"
            if await self._create(token_id):
                await self._pause()
                await self._renew(token_id)
                await self._expire(token_id)
            await self._pause()

    async def _create(self, token_id: str) -> bool:
        """Return whether the token exists; False if that is unknown."""
        request = CreateDelegationToken(
            token_id=token_id,
            owner=_OWNER,
            requester=_OWNER,
            lifetime_ms=_PERIOD_MS,
            period_ms=_PERIOD_MS,
        )
        client, timeout_s = self._client, self._timeout_s()
        if (
            await self._send_request(client.create_delegation_token(request, timeout_s=timeout_s))
            is None
        ):
            return False
        self._world.trace("token created", token_id)
        self._kept[token_id] = self._world.metadata.end_offset
        self._look()
        return True

    async def _renew(self, token_id: str) -> None:
        """Renew the token. It remains valid whether or not a response arrives."""
        request = RenewDelegationToken(token_id=token_id, principal=_OWNER, period_ms=_PERIOD_MS)
        await self._send_request(
            self._client.renew_delegation_token(request, timeout_s=self._timeout_s())
        )
        self._look()

    async def _expire(self, token_id: str) -> None:
        """Repeat until the token is removed."""
        del self._kept[token_id]
        request = ExpireDelegationToken(token_id=token_id, principal=_OWNER, period_ms=-1)
        while True:
            try:
                await self._client.expire_delegation_token(request, timeout_s=self._timeout_s())
            except TimeoutError:
                await asyncio.sleep(0.1)
            except RequestRefused as refused:
                if refused.status is Status.TOKEN_NOT_FOUND:
                    break  # removed by an earlier attempt whose response was lost
                await asyncio.sleep(0.1)
            except ControllerError:
                await asyncio.sleep(0.1)
            else:
                break
        self._world.trace("token expired", token_id)
        self._removed[token_id] = self._world.metadata.end_offset
        self._look()

    async def _pause(self) -> None:
        await asyncio.sleep(self._pace_s * self._rng.random() * 2)

    async def _add(self, acl: AclEntry) -> bool:
        """Return whether the ACL exists; False if that is unknown."""
        request = CreateAcls(acls=[acl])
        response = await self._send_request(
            self._client.create_acls(request, timeout_s=self._timeout_s())
        )
        if response is None:
            return False
        self._world.trace("acl added", acl.principal)
        if response.items[0].status is not Status.OK:
            self._world.fail(f"{acl} is refused: {response.items[0]}")
        self._kept[acl] = self._world.metadata.end_offset
        self._look()
        return True

    async def _remove(self, acl: AclEntry) -> None:
        """Repeat the removal until a response arrives."""
        del self._kept[acl]
        request = DeleteAcls(filters=[AclFilter(principal=acl.principal)])
        while (
            await self._send_request(self._client.delete_acls(request, timeout_s=self._timeout_s()))
            is None
        ):
            pass
        self._world.trace("acl removed", acl.principal)
        self._removed[acl] = self._world.metadata.end_offset
        self._look()

    def _look(self) -> None:
        self.look(self._world.metadata.image)
        self._look_at_brokers()

    def _look_at_brokers(self) -> None:
        for name, image in self._images().items():
            self._compare(name, image, image.end_offset)

    def _images(self) -> dict[str, MetadataImage]:
        return {
            broker.process.name: broker.image
            for broker in self._world.brokers.values()
            if broker.serving and not broker.process.dead
        }

    def _compare(self, name: str, image: MetadataImage, end_offset: int) -> None:
        """Check an image that contains the metadata up to an offset."""
        there: set[_Ruled] = {*image.acls, *(token.token_id for token in image.delegation_tokens)}
        for item, since in self._kept.items():
            if end_offset >= since and item not in there:
                self._world.fail(f"{item} was added at {since} and is not in {name}, {end_offset}")
        for item in there:
            if end_offset >= self._removed.get(item, end_offset + 1):
                self._world.fail(
                    f"{item} was removed at {self._removed[item]} and is in {name}, {end_offset}"
                )

    def _timeout_s(self) -> float:
        return 30 if self._world.calm else self._rng.choice((0.1, 1.0, 10.0))

    async def _send_request(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Send a request; return None if it is unknown whether it was executed."""
        try:
            return await work
        except (TimeoutError, ControllerError) as error:
            self._world.trace("no response", type(error).__name__)
            await asyncio.sleep(0.1)
            return None
