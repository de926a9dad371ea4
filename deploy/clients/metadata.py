"""The cluster's metadata for the command line: an observer that follows the controller until it has
caught up.

Invariant: an observer has no session, so looking changes nothing. Must not import gRPC before it is
needed.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from controller.metadata.image import MetadataImage
from deploy.clients import state_file
from deploy.errors import NoController

CONTROLLER_VARIABLE: Final = "PENSTOCK_CONTROLLER"
_TIMEOUT_S: Final = 10.0
_T = TypeVar("_T")


def find_controller(
    named: str | None, state_path: Path | None, environment: Mapping[str, str]
) -> str:
    """host:port of the controller: as named, or as the state file of a running cluster tells.
    Raises NoController.
    """
    if named:
        return named
    path = state_path or state_file.default_path(environment)
    state = state_file.read(path)
    if state is None:
        raise NoController(
            f"which controller? No running cluster is described in {path}; name one with"
            f" --controller HOST:PORT ({CONTROLLER_VARIABLE}), or start one with `penstock dev`"
        )
    return state.controller


def look(controller: str, view: Callable[[MetadataImage], _T]) -> _T:
    """What `view` makes of the image as of now. Raises NoController."""
    return asyncio.run(_look(controller, view))


async def _look(controller: str, view: Callable[[MetadataImage], _T]) -> _T:
    from controller.api.client import ControllerClient
    from controller.api.follower import MetadataFollower

    client = ControllerClient(controller.split(","))
    follower = MetadataFollower(client)
    try:
        await follower.start(_TIMEOUT_S)
        return view(follower.image)
    except TimeoutError:
        raise NoController(
            f"no controller answers at {controller} within {_TIMEOUT_S:.0f} s"
        ) from None
    finally:
        await follower.stop()
        await client.close()
