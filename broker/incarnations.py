"""Decide whether a process may restart its broker after an incarnation has ended.

The next incarnation registers with a new node epoch, and the WAL of the previous one is fenced and
recovered, as for any other dead broker. A process does not restart a node that runs in another
process, because the two would fence each other forever.
"""

import asyncio
from typing import Final

from penstock.broker.node import Broker

VERDICT_S: Final = 10.0
"""How long to wait for the controller's decision after another broker has fenced the WAL."""
_POLL_S: Final = 0.05


async def may_restart(broker: Broker) -> bool:
    """Return True if the session of this incarnation has expired and no other process has replaced
    it. Call this after the incarnation has ended and before it is abandoned.
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
