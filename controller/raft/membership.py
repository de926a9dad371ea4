"""Decide which membership changes are allowed: one voter at a time, and only after the previous
change is committed.

See Ongaro's thesis 4.1 and 4.2.1, and KIP-853. A controller is identified by its id and its disk.
After its disk is lost, a controller must be removed and added again.
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
    """Return the members with a new learner, which receives the log and may become a voter
    later.
    """
    if node_id in members.everyone:
        return members
    endpoints = _with(members.endpoints, Endpoint(node_id, address, directory))
    return Members(
        members.voters, tuple(sorted((*members.learners, node_id))), endpoints, members.version + 1
    )


def promoted(members: Members, node_id: int) -> Members:
    """Return the members with a learner promoted to voter. If it is already a voter, nothing
    changes.
    """
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
    """Return the members with the addresses and disks that controllers have sent. An endpoint whose
    disk differs from the member's is ignored, because it belongs to another controller.
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
    """Return whether the sender claims to be a member but has a different disk, according to a
    member list that is at least as new as the sender's (`version`).

    Messages of such a sender must not be counted: the member was removed and added again, or has
    lost its disk.
    """
    listed = members.endpoint(node_id).directory
    return listed not in {"", directory} and version <= members.version


def is_intended_receiver(members: Members, own: Endpoint, wanted: str, version: int) -> bool:
    """Return whether a call is intended for this controller's disk. It may also be intended for an
    earlier disk, if the caller's member list (`version`) is older than ours.
    """
    return wanted in {"", own.directory} or (
        version < members.version and members.endpoint(own.node_id).directory == own.directory
    )


def refusal(
    old: Members, new: Members, *, is_pending: bool, has_committed_in_term: bool
) -> str | None:
    """Return the reason why the leader must not propose `new` now, or None if it may."""
    if is_pending:
        return "another change of the quorum is not committed yet"
    if not has_committed_in_term:
        return "the leader has not committed anything in its term yet"
    # Every majority of the old voters must have a voter in common with every majority of the new
    # ones. Otherwise, two leaders could be elected in one term while some voters use the old set
    # and others the new one.
    if len(set(old.voters) ^ set(new.voters)) > 1:
        return f"voters {old.voters} can become {new.voters} only one at a time"
    if not new.voters:
        return "a quorum needs a voter"
    if len(set(new.everyone)) != len(new.everyone):
        return f"a controller is listed twice: voters {new.voters}, learners {new.learners}"
    # `new` must be derived from the current members, not from the members before another change.
    if new.version != old.version + 1:
        return f"the quorum has changed: version {new.version} does not follow {old.version}"
    return None


def _with(endpoints: tuple[Endpoint, ...], endpoint: Endpoint) -> tuple[Endpoint, ...]:
    others = (other for other in endpoints if other.node_id != endpoint.node_id)
    return tuple(sorted((*others, endpoint), key=lambda known: known.node_id))
