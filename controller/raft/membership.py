"""Which changes of the quorum are allowed: one voter at a time, and only when the last change is committed. Pure.

Invariant: every majority of the old voters and every majority of the new ones share a voter, so that no two leaders of one term can be
elected while some voters use one set and some the other. Source: Ongaro's thesis 4.1 and 4.2.1; KIP-853 for learners first.
"""

from controller.raft.messages import Members


def added_learner(members: Members, node_id: int) -> Members:
    """A newcomer gets the log first and votes later."""
    if node_id in members.everyone:
        return members
    return Members(members.voters, tuple(sorted((*members.learners, node_id))))


def promoted(members: Members, node_id: int) -> Members:
    """A learner becomes a voter; twice is once."""
    if node_id not in members.learners:
        return members
    return Members(tuple(sorted((*members.voters, node_id))), tuple(learner for learner in members.learners if learner != node_id))


def removed(members: Members, node_id: int) -> Members:
    return Members(
        tuple(voter for voter in members.voters if voter != node_id), tuple(learner for learner in members.learners if learner != node_id)
    )


def refusal(old: Members, new: Members, *, is_pending: bool, has_committed_in_term: bool) -> str | None:
    """Why the leader may not propose `new` now; None: it may."""
    if is_pending:
        return "another change of the quorum is not committed yet"
    if not has_committed_in_term:
        return "the leader has not committed anything in its term yet"
    if len(set(old.voters) ^ set(new.voters)) > 1:
        return f"voters {old.voters} can become {new.voters} only one at a time"
    if not new.voters:
        return "a quorum needs a voter"
    return None
