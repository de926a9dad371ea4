"""Decide which membership changes are allowed: one voter at a time, and only after the last change
is committed. Pure.

See Ongaro's thesis 4.1 and 4.2.1, and KIP-853. A controller is an id and a disk: one that lost its
disk is another controller, and must be removed and added.
"""

from collections.abc import Iterable

from penstock.controller.raft.messages import Endpoint, Members


def founded(addresses: Iterable[tuple[int, str]]) -> Members:
    """Return the members of a new cluster. Their disks become known when they first connect to a
    leader.
    """
    endpoints = tuple(Endpoint(node_id, address) for node_id, address in sorted(addresses))
    return Members(tuple(endpoint.node_id for endpoint in endpoints), (), endpoints)


def added_learner(
    members: Members, node_id: int, address: str = "", directory: str = ""
) -> Members:
    """Return the members with a new learner, which receives the log and becomes a voter later."""
    if node_id in members.everyone:
        return members
    endpoints = _with(members.endpoints, Endpoint(node_id, address, directory))
    return Members(
        members.voters, tuple(sorted((*members.learners, node_id))), endpoints, members.version + 1
    )


def promoted(members: Members, node_id: int) -> Members:
    """Return the members with a learner promoted to voter; a voter stays one."""
    if node_id not in members.learners:
        return members
    learners = tuple(learner for learner in members.learners if learner != node_id)
    return Members(
        tuple(sorted((*members.voters, node_id))), learners, members.endpoints, members.version + 1
    )


def removed(members: Members, node_id: int) -> Members:
    if node_id not in members.everyone:
        return members
    return Members(
        tuple(voter for voter in members.voters if voter != node_id),
        tuple(learner for learner in members.learners if learner != node_id),
        tuple(endpoint for endpoint in members.endpoints if endpoint.node_id != node_id),
        members.version + 1,
    )


def introduced(members: Members, endpoints: Iterable[Endpoint]) -> Members:
    """Return the members with the addresses and disks that they sent. A disk other than the known
    one is not a change of that member but another controller.
    """
    known = members.endpoints
    for endpoint in endpoints:
        if members.lists(endpoint.node_id, endpoint.directory) and endpoint.address:
            known = _with(known, endpoint)
    return (
        members
        if known == members.endpoints
        else Members(members.voters, members.learners, known, members.version + 1)
    )


def is_impostor(members: Members, node_id: int, directory: str, version: int) -> bool:
    """Return whether the sender has a disk other than that of the member it claims to be, and its
    members (of that version) are no newer than ours.

    Its messages must not be counted: the member was removed and added again, or it lost its disk.
    """
    listed = members.endpoint(node_id).directory
    return listed not in {"", directory} and version <= members.version


def is_intended_receiver(members: Members, own: Endpoint, wanted: str, version: int) -> bool:
    """Return whether a call is for this controller's disk, or for an earlier disk because the
    caller's members (of that version) are older than ours.
    """
    return wanted in {"", own.directory} or (
        version < members.version and members.endpoint(own.node_id).directory == own.directory
    )


def refusal(
    old: Members, new: Members, *, is_pending: bool, has_committed_in_term: bool
) -> str | None:
    """Return why the leader may not propose `new` now, or None."""
    if is_pending:
        return "another change of the quorum is not committed yet"
    if not has_committed_in_term:
        return "the leader has not committed anything in its term yet"
    # Every majority of the old voters then has a voter in common with every majority of the new
    # ones. Otherwise two leaders could be elected in one term, while some voters use the old set
    # and some the new one.
    if len(set(old.voters) ^ set(new.voters)) > 1:
        return f"voters {old.voters} can become {new.voters} only one at a time"
    if not new.voters:
        return "a quorum needs a voter"
    if len(set(new.everyone)) != len(new.everyone):
        return f"a controller is listed twice: voters {new.voters}, learners {new.learners}"
    # `new` must be derived from the current members, not from those before another change.
    if new.version != old.version + 1:
        return f"the quorum has changed: version {new.version} does not follow {old.version}"
    return None


def _with(endpoints: tuple[Endpoint, ...], endpoint: Endpoint) -> tuple[Endpoint, ...]:
    others = (other for other in endpoints if other.node_id != endpoint.node_id)
    return tuple(sorted((*others, endpoint), key=lambda known: known.node_id))
