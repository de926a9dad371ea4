"""The health of a process, for Kubernetes-style startup, liveness and readiness probes.
`deploy.node.health` serves it.

Each method returns a list of reasons for operators, which is empty if the process is healthy.
`not_ready` takes at most a few seconds; the other methods do not wait.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol


class Health(Protocol):
    """The health of one process, from before it has started until it ends."""

    def not_started(self) -> list[str]:
        """Return the reason why the process has not started."""
        ...

    def not_alive(self) -> list[str]:
        """Return the reason why the process must be restarted. Any response shows that the event
        loop is running.
        """
        ...

    async def not_ready(self) -> list[str]:
        """Return the reason why requests should currently be sent to other processes."""
        ...


ServeHealth = Callable[[Health], AbstractAsyncContextManager[object]]
"""Serves the health of a process while the context lasts."""


def no_health_endpoint(_health: Health) -> AbstractAsyncContextManager[object]:
    """Serve nothing, for processes without an orchestrator."""
    return nullcontext()
