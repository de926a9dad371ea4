"""The health of a process, as in Kubernetes' startup, liveness and readiness probes.
`deploy.node.health` serves it.

A result is a list of reasons, for operators; an empty list means yes. `not_ready` waits at most a
few seconds; the others do not wait.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol


class Health(Protocol):
    """The health of one process, from before its start to its end."""

    def not_started(self) -> list[str]:
        """Return why the process has not started."""
        ...

    def not_alive(self) -> list[str]:
        """Return why the process must be restarted. Any response shows that the event loop runs."""
        ...

    async def not_ready(self) -> list[str]:
        """Return why requests should currently go elsewhere."""
        ...


ServeHealth = Callable[[Health], AbstractAsyncContextManager[object]]
"""Serve the health of a process while the context lasts."""


def no_health_endpoint(_health: Health) -> AbstractAsyncContextManager[object]:
    """Serve nothing, for processes without an orchestrator."""
    return nullcontext()
