"""Ask a broker for a list that it may refuse: a page shows the reason instead of the list."""

from collections.abc import Callable
from typing import TypeVar

from penstock.deploy.clients.wire import WireClient
from penstock.deploy.console.console import Console
from penstock.deploy.errors import KafkaFailed

_T = TypeVar("_T")


async def listed(console: Console, ask: Callable[[WireClient], list[_T]]) -> tuple[list[_T], str]:
    """Return what a broker answers, or nothing and why. Raises KafkaFailed if none answers."""
    return await console.call(_listed, console.options.bootstrap, ask)


def _listed(bootstrap: str, ask: Callable[[WireClient], list[_T]]) -> tuple[list[_T], str]:
    with WireClient(bootstrap) as client:
        try:
            return ask(client), ""
        except KafkaFailed as error:
            return [], str(error)
