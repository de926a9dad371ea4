"""Define the health of a process: whether it has started, whether it works, and whether clients
should use it.

Invariant: an answer is a list of reasons why not; an empty list means yes. Each reason is a
sentence for the operator of the pod. `not_ready` waits at most a few seconds; the others do not
wait.
Must not serve anything: `deploy.node.health` does.
Source: Kubernetes' startup, liveness and readiness probes.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol


class Health(Protocol):
    """The health of one process, from before its start to its end."""

    def not_started(self) -> list[str]:
        """Return why the process does not serve yet."""
        ...

    def not_alive(self) -> list[str]:
        """Return why the process must be restarted. Any answer shows that the event loop runs."""
        ...

    async def not_ready(self) -> list[str]:
        """Return why requests should go elsewhere now."""
        ...


ServeHealth = Callable[[Health], AbstractAsyncContextManager[object]]
"""Serve the health of a process while the context lasts."""


def no_health_endpoint(_health: Health) -> AbstractAsyncContextManager[object]:
    """Serve nothing, for processes without an orchestrator."""
    return nullcontext()
