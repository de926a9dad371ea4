"""Request a list that a broker may refuse to return. The page then displays the reason instead of
the list.
"""

from collections.abc import Callable
from typing import TypeVar

from penstock.deploy.clients.wire import WireClient
from penstock.deploy.console.console import Console
from penstock.protocol.client.errors import KafkaFailed, NoResponse

_T = TypeVar("_T")


async def listed(
    console: Console, send_request: Callable[[WireClient], list[_T]]
) -> tuple[list[_T], str]:
    """Return the list, or an empty list with the reason. Raises NoResponse."""

    def responded(client: WireClient) -> tuple[list[_T], str]:
        try:
            return send_request(client), ""
        except NoResponse:
            raise
        except KafkaFailed as error:
            return [], str(error)

    return await console.call_brokers(responded)
