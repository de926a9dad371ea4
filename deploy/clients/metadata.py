"""Read the cluster's metadata for the command line, as an observer that follows the controller
until it has caught up.

Invariant: an observer has no session, so it changes nothing. gRPC is imported only when it is
needed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.clients import state_file
from penstock.deploy.clients.controllers import connect, response_of, use_tls
from penstock.deploy.clients.profiles import current_profile
from penstock.deploy.clients.target import dev_cluster, dev_cluster_at
from penstock.deploy.errors import NoController

if TYPE_CHECKING:
    from penstock.controller.api.client import ControllerClient
    from penstock.controller.api.follower import MetadataFollower

CONTROLLER_VARIABLE: Final = "PENSTOCK_CONTROLLER"
_TIMEOUT_S: Final = 10.0
_T = TypeVar("_T")


def find_controller(
    named: str | None, state_path: Path | None, environment: Mapping[str, str]
) -> str:
    """Return the address of the controllers: the given one, or the one in the profile or in the
    state file of a running cluster, whose TLS settings later connections use. Raises NoController.
    """
    if named:
        if (dev := dev_cluster_at(named, "controller")) is not None:
            use_tls(dev.controller_tls)
        return named
    used = current_profile()
    if state_path is None and used.profile.controller:
        return used.profile.controller
    state = dev_cluster(state_path)
    if state is None and state_path is None and used.name:
        raise NoController(
            f"profile {used.name} has no controller (`penstock profile add --replace` adds one):"
            f" pass --controller HOST:PORT ({CONTROLLER_VARIABLE})"
        )
    if state is None:
        raise NoController(
            "no controller given, and no running cluster in"
            f" {state_path or state_file.default_path(environment)}: pass --controller HOST:PORT"
            f" ({CONTROLLER_VARIABLE}), or start a cluster with `penstock dev`"
        )
    use_tls(state.controller_tls)
    return state.controller


def read_metadata(controller: str, view: Callable[[MetadataImage], _T]) -> _T:
    """Return the result of `view` on the current metadata. Raises NoController."""

    async def read() -> _T:
        async with following(controller) as (_, follower):
            return view(follower.image)

    return asyncio.run(read())


@asynccontextmanager
async def following(
    controller: str,
) -> "AsyncGenerator[tuple[ControllerClient, MetadataFollower]]":
    """Connect to the controllers, and follow them. Raises NoController."""
    from penstock.controller.api.follower import MetadataFollower

    client = connect(controller)
    follower = MetadataFollower(client)
    try:
        await response_of(client, controller, _TIMEOUT_S, follower.start(_TIMEOUT_S))
        yield client, follower
    finally:
        await follower.stop()
        await client.close()
