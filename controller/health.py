"""What a process tells the world about itself: whether it started, whether it works, whether clients should be sent to it.

Invariant: an answer is a list of reasons why not; an empty one means yes. Each is a sentence for the one who looks into the pod.
`ready` waits at most a few seconds; the others do not wait. Must not serve anything: `deploy.health` does.
Source: Kubernetes' startup, liveness and readiness probes.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from objectstore.metered import StoreMeter

if TYPE_CHECKING:
    from controller.main import ControllerServer


class Health(Protocol):
    """Of one process, from before its start to its end."""

    def not_started(self) -> list[str]:
        """Why it does not serve yet."""
        ...

    def not_alive(self) -> list[str]:
        """Why only a new process can help. That anything answers shows that the event loop turns."""
        ...

    async def not_ready(self) -> list[str]:
        """Why requests should go elsewhere now."""
        ...


ServeHealth = Callable[[Health], AbstractAsyncContextManager[object]]
"""Tells about it while the context lasts."""


def tell_nobody(_health: Health) -> AbstractAsyncContextManager[object]:
    """For processes that no orchestrator watches."""
    return nullcontext()


class ControllerHealth:
    """A controller is ready when it serves the metadata that a quorum it knows has committed."""

    def __init__(self, server: "ControllerServer", requests: StoreMeter | None = None) -> None:
        self.server = server
        self.requests = requests or StoreMeter()
        """Of the process to its store."""
        self.stopping = False

    def not_started(self) -> list[str]:
        return [] if self.server.is_serving else ["the data directory is being read"]

    def not_alive(self) -> list[str]:
        failed = self.server.failed
        error = failed.exception() if failed is not None and failed.done() and not failed.cancelled() else None
        return [] if error is None else [f"the controller failed: {error!r}"]

    async def not_ready(self) -> list[str]:
        if self.stopping:
            return ["the controller is stopping"]
        return self.not_started() or self.not_alive() or self.server.why_not_following()
