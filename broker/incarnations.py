"""Decide whether a process may start its broker again after an incarnation has ended.

An incarnation whose session expired never serves again. The next one registers in the same process:
it gets a new node epoch, and the WAL of the last one is fenced and recovered like that of any other
broker.
Invariant: no process starts a node that runs in another process, since both would fence each other
for ever.
"""

import asyncio
from typing import Final

from penstock.broker.node import Broker

VERDICT_S: Final = 10.0
"""How long to wait for the verdict of the controller, after another broker has fenced the WAL."""
_POLL_S: Final = 0.05


async def may_start_again(broker: Broker) -> bool:
    """Return whether the session of this incarnation expired. Call it after the incarnation ended
    and before it is abandoned.
    """
    follower = broker.follower
    if broker.storage.fenced and not broker.is_wal_fenced:
        return False  # the WAL cannot be written, and the session ends with the process
    try:
        async with asyncio.timeout(VERDICT_S):
            while not follower.fenced:
                node = broker.image.nodes.get(broker.node_id)
                if follower.failed.done() or node is None:
                    return False
                if node.node_epoch != broker.node_epoch:
                    return False
                if node.fenced:
                    return True
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return not follower.replaced
