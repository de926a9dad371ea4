"""What a process tells about itself: whether it started, whether it works, whether clients should
be sent to it.

Invariant: an answer is a list of reasons why not; an empty one means yes. Each is a sentence for
the one who looks into the pod. `not_ready` waits at most a few seconds; the others do not wait.
Must not serve anything: `deploy.node.health` does.
Source: Kubernetes' startup, liveness and readiness probes.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol


class Health(Protocol):
    """Of one process, from before its start to its end."""

    def not_started(self) -> list[str]:
        """Why it does not serve yet."""
        ...

    def not_alive(self) -> list[str]:
        """Why only a new process can help. That anything answers shows that the event loop
        turns.
        """
        ...

    async def not_ready(self) -> list[str]:
        """Why requests should go elsewhere now."""
        ...


ServeHealth = Callable[[Health], AbstractAsyncContextManager[object]]
"""Tells about it while the context lasts."""


def no_health_endpoint(_health: Health) -> AbstractAsyncContextManager[object]:
    """For processes that no orchestrator watches."""
    return nullcontext()
