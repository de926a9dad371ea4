"""Request proposed moves from the controller, and start them.

Invariant: a proposal changes nothing. gRPC is imported only when it is needed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.base.errors import ExpectedError
from penstock.controller.api.load_messages import (
    LeaderMove,
    MoveLeaders,
    MovesProposed,
    ProposedMove,
    ProposeMoves,
)
from penstock.deploy.clients.controllers import connect, response_of

if TYPE_CHECKING:
    from penstock.controller.api.client import ControllerClient

_TIMEOUT_S: Final = 10.0
_T = TypeVar("_T")


def propose_moves(
    controller: str, *, topics: Sequence[str] = (), moves_max: int = 0
) -> MovesProposed:
    """Return the loads of all brokers and at most `moves_max` moves. Raises NoController."""
    request = ProposeMoves(topics=tuple(topics), moves_max=moves_max)
    return _send_request(
        controller, lambda client: client.propose_moves(request, timeout_s=_TIMEOUT_S)
    )


def begin_moves(controller: str, moves: Sequence[ProposedMove]) -> list[str]:
    """Start moves. Return "" for each started move, otherwise the reason why it was not started.
    Raises NoController, ExpectedError.
    """
    items = [
        LeaderMove(
            topic=move.topic, partition=move.partition, source=move.source, target=move.target
        )
        for move in moves
    ]
    results = _send_request(
        controller,
        lambda client: client.move_leaders(MoveLeaders(moves=items), timeout_s=_TIMEOUT_S),
    )
    return [
        (result.detail or result.status.name) if result.status else "" for result in results.items
    ]


def _send_request(controller: str, call: "Callable[[ControllerClient], Awaitable[_T]]") -> _T:
    from penstock.controller.api.errors import RequestRefused

    async def send() -> _T:
        client = connect(controller)
        try:
            return await response_of(client, controller, _TIMEOUT_S, call(client))
        except RequestRefused as error:
            raise ExpectedError(str(error)) from None
        finally:
            await client.close()

    return asyncio.run(send())
