"""Send quorum requests for the command line, and report if there is no leader.

`controller.active.quorum_changes` implements the rules of the quorum.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.base.errors import ExpectedError
from penstock.controller.api.errors import RequestRefused
from penstock.controller.api.messages import QuorumMember, QuorumStatus
from penstock.deploy.clients.controller_faults import advice, fault_of
from penstock.deploy.clients.controllers import NoAddress, connect, unless_locked_out
from penstock.deploy.errors import NoController

if TYPE_CHECKING:
    from penstock.controller.api.client import ControllerClient

_TIMEOUT_S: Final = 10.0
_EACH_S: Final = 1.0
T = TypeVar("T")


def describe(controller: str) -> QuorumStatus:
    """Return the quorum as described by the leader. Raises NoController with the responses of all
    controllers if there is no leader.
    """
    return asyncio.run(
        _with_client(controller, lambda client: client.describe_quorum(timeout_s=_TIMEOUT_S))
    )


def change(controller: str, request: "Callable[[ControllerClient], Awaitable[None]]") -> None:
    """Make one change, which is committed on return. Raises NoController, and ExpectedError with
    the reason if the change was rejected.
    """
    asyncio.run(_with_client(controller, request))


async def _with_client(
    controller: str, send_request: "Callable[[ControllerClient], Awaitable[T]]"
) -> T:
    client = connect(controller)
    try:
        return await unless_locked_out(client, send_request(client))
    except RequestRefused as error:
        raise ExpectedError(error.detail or error.status.name) from None
    except NoAddress as error:
        responses = [f"  {address}: {fault}" for address, fault in error.faults.items()]
        raise NoController("\n".join((f"{error}; {advice(controller)}", *responses))) from None
    except TimeoutError as error:
        responses = [await _describe_one(address) for address in controller.split(",")]
        raise NoController("\n".join((f"{error}; {advice(controller)}", *responses))) from None
    finally:
        await client.close()


async def _describe_one(address: str) -> str:
    client = connect([address])
    try:
        status = await client.describe(timeout_s=_EACH_S)
        return (
            f"  {address}: controller {status.controller_id}, {status.role}, epoch"
            f" {status.controller_epoch}, follows {status.leader or 'no leader'}"
        )
    except TimeoutError:
        fault = await fault_of(address)
        return f"  {address}: {fault or client.problem or 'no response'}"
    finally:
        await client.close()


def status_lines(quorum: QuorumStatus) -> list[tuple[str, object]]:
    """Return the lines of `kafka-metadata-quorum describe --status`."""
    voters = [member for member in quorum.members if member.is_voter]
    lagging = max(voters, key=lambda member: member.lag, default=None)
    lines: list[tuple[str, object]] = [
        ("ClusterId", quorum.cluster_id),
        ("LeaderId", quorum.leader_id),
        ("LeaderEpoch", quorum.leader_epoch),
        ("HighWatermark", quorum.high_watermark),
        ("MetadataOffset", quorum.committed_offset),
        ("MaxFollowerLag", 0 if lagging is None else lagging.lag),
        ("MaxFollowerLagTimeMs", max((member.last_caught_up_ms for member in voters), default=0)),
        ("CurrentVoters", _ids(voters)),
        ("CurrentObservers", _ids([member for member in quorum.members if not member.is_voter])),
    ]
    return [*lines, ("Change", "a member is not committed yet")] if quorum.is_changing else lines


def replication_rows(quorum: QuorumStatus) -> list[tuple[object, ...]]:
    """Return the rows of `kafka-metadata-quorum describe --replication`; times are milliseconds
    ago.
    """
    return [
        (
            member.node_id,
            member.directory_id or "-",
            member.address or "-",
            member.log_end,
            member.lag,
            member.last_fetch_ms,
            member.last_caught_up_ms,
            f"{member.fsync_p99_us / 1_000:.1f}" if member.fsync_p99_us else "-",
            _status_of(quorum, member),
        )
        for member in quorum.members
    ]


def _status_of(quorum: QuorumStatus, member: QuorumMember) -> str:
    if member.node_id == quorum.leader_id:
        return "Leader"
    return "Follower" if member.is_voter else "Observer"


def _ids(members: Sequence[QuorumMember]) -> str:
    return "[" + ",".join(str(member.node_id) for member in members) + "]"


def removal(quorum: QuorumStatus, node_id: int) -> str:
    """Describe the effect of removing a member. Raises ExpectedError if the member does not
    exist.
    """
    found = next((member for member in quorum.members if member.node_id == node_id), None)
    if found is None:
        raise ExpectedError(
            f"controller {node_id} is not a member of the quorum; members are"
            f" {_ids(quorum.members)}"
        )
    left = [member for member in quorum.members if member.is_voter and member is not found]
    return (
        f"would remove controller {node_id} ({_status_of(quorum, found)}); voters would be"
        f" {_ids(left)}"
    )
