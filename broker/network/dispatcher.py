"""The interface between connections and request handlers."""

from collections.abc import Coroutine
from typing import Any, Protocol

from penstock.broker.network.request import ConnectionInfo, Respond, Response


class CannotRespond(Exception):
    """Raised if the broker cannot send an error response to a request. The connection is closed,
    and the message is logged.
    """


class Dispatcher(Protocol):
    """Handles the frames of all connections."""

    def is_blocked(self, frame: bytearray) -> bool:
        """Return True if this request must not start now, such as a Produce while the storage is
        full.
        """
        ...

    async def wait_unblocked(self) -> None: ...

    def start(
        self, connection: ConnectionInfo, frame: bytearray, respond: Respond
    ) -> Coroutine[Any, Any, Response] | None:
        """Handle a request: call `respond` now or later, or return a coroutine to run. Raises
        WireError, CannotRespond.
        """
        ...
