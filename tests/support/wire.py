"""Connect to brokers whose process may be too busy to respond within the 5 s of `WireClient`."""

import time

from penstock.deploy.clients.wire import WireClient
from penstock.protocol.client.errors import NoResponse
from tests.support.waiting import PATIENCE_S


def wire_client(address: str) -> WireClient:
    """Return a connection. Raises NoResponse at once if the broker refuses it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return WireClient(address)
        except NoResponse as error:
            if "sent no response" not in str(error) or time.monotonic() > deadline:
                raise
