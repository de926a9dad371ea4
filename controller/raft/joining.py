"""Join a quorum with an empty directory: repeat the request until this controller is a learner
(KIP-853).

A controller that was removed does not join again on its own.
"""

import asyncio

import structlog

from penstock.controller.api import messages as m
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import InvalidConfig, RequestRefused
from penstock.controller.config import ControllerConfig
from penstock.controller.raft.identity import Identity
from penstock.controller.raft.replicated_log import RaftQuorum

_log = structlog.get_logger(__name__)
_ATTEMPT_S = 5.0
_AGAIN_S = 1.0


async def find_cluster(config: ControllerConfig, client: ControllerClient) -> str:
    """Return the id of the cluster to join, and close the client. Raises InvalidConfig."""
    try:
        return (await client.describe(timeout_s=config.join_timeout_ms / 1_000)).cluster_id
    except TimeoutError as error:
        raise InvalidConfig(
            "join", ",".join(config.join), f"addresses of reachable controllers ({error})"
        ) from None
    finally:
        await client.close()


async def join(
    config: ControllerConfig,
    identity: Identity,
    quorum: RaftQuorum,
    address: str,
    client: ControllerClient,
) -> None:
    """Join the quorum and return when this controller is a member. An operator may have to remove
    the controller's earlier disk first. Closes the client, which connects to `config.join`.
    """
    request = m.AddLearner(
        node_id=config.controller_id, address=address, directory_id=identity.directory_id
    )
    try:
        while quorum.core.log.members_index > quorum.core.commit or not quorum.core.is_member:
            try:
                await client.add_learner(request, timeout_s=_ATTEMPT_S)
                async with asyncio.timeout(_ATTEMPT_S):
                    while not quorum.core.is_member:
                        await quorum.wait_changed()
            except RequestRefused as error:
                _log.warning("quorum_join_pending", reason=error.detail)
                client.learn(quorum.controllers)
            except TimeoutError as error:
                _log.warning(
                    "quorum_join_failed",
                    reason=str(error) or "the log of the leader has not been received yet",
                )
            await asyncio.sleep(_AGAIN_S)
    finally:
        await client.close()
    identity.joined()
    _log.info("quorum_joined", controller_id=config.controller_id, members=quorum.members.everyone)
