"""Each anomaly is found, with its values and offsets, in a small history that contains it, and not
in similar correct histories.
"""

from collections.abc import Mapping

import pytest

from tests.support.anomalies import (
    ANOMALIES,
    UNKNOWN,
    Ack,
    Assign,
    Commit,
    Committed,
    Consumed,
    Latest,
    Operation,
    Outcome,
    Part,
    Poll,
    Record,
    Write,
    find_anomalies,
)

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO
LEASE_S = 3.0
P: Part = ("t", 0)
Q: Part = ("t", 1)


def at(offset: int, value: bytes, part: Part = P) -> Record:
    return Record(part, offset, value)


def write(
    outcome: Outcome, *sends: Record, process: str = "p", began_s: float = 1.0, ordered: bool = True
) -> Write:
    """Return a transaction that ends 1 s after its start; its commit is requested halfway."""
    return Write(
        process, outcome, began_s, began_s + 1, sends, commit_began_s=began_s + 0.5, ordered=ordered
    )


def poll(
    *records: Record, process: str = "c", ended_s: float = 9.0, committed: bool = True
) -> Poll:
    return Poll(process, ended_s - 0.1, ended_s, records, committed)


def consumed(outcome: Outcome, first: int, end: int, output: Record, began_s: float = 1.0) -> Write:
    return Write(
        "p",
        outcome,
        began_s,
        began_s + 1,
        (output,),
        began_s + 0.5,
        group="g",
        consumed=(Consumed(P, first, end),),
    )


def commit(
    offset: int,
    outcome: Outcome,
    ended_s: float,
    group: str = "g",
    lasts_s: float = 0.5,
    member: str = "",
) -> Commit:
    return Commit(group, P, offset, outcome, ended_s - lasts_s, ended_s, member)


def committed(offset: int, began_s: float) -> Committed:
    return Committed("g", P, offset, began_s, began_s + 0.1)


def found(*history: Operation, ends: Mapping[Part, int] | None = None) -> dict[str, str]:
    return {anomaly.name: anomaly.text for anomaly in find_anomalies(history, LEASE_S, ends)}


GOOD = (
    write(OK, at(0, b"a"), at(0, b"b", Q)),
    write(FAIL, at(2, b"x"), at(2, b"y", Q), began_s=3),
    write(INFO, at(UNKNOWN, b"i"), began_s=5),
    write(OK, at(4, b"c"), at(5, b"d"), began_s=7),
    poll(at(0, b"a"), at(0, b"b", Q), at(4, b"c")),
    poll(at(5, b"d"), ended_s=10),
)


def test_a_correct_history_has_no_anomalies() -> None:
    assert found(*GOOD, ends={P: 7, Q: 4}) == {}


def test_an_empty_history_has_no_anomalies() -> None:
    assert found() == {}


BAD: dict[str, tuple[tuple[Operation, ...], tuple[str, ...]]] = {
    "inconsistent-offsets": (
        (poll(at(3, b"a")), poll(at(3, b"b"), process="d")),
        ("t-0 offset 3", "b'a'", "b'b'"),
    ),
    "duplicate": ((poll(at(3, b"a"), at(5, b"a")),), ("b'a'", "3, 5")),
    "G1a": (
        (write(FAIL, at(3, b"a")), poll(at(3, b"a"))),
        ("c polled b'a' (t-0 offset 3)", "transaction of p"),
    ),
    "precommitted-read": (
        (poll(at(3, b"a"), ended_s=1.4), write(OK, at(3, b"a"))),
        ("b'a'", "polled", "commit asked at 1.500 s"),
    ),
    "lost-write": (
        (write(OK, at(3, b"a")), write(OK, at(4, b"b"), process="q"), poll(at(4, b"b"))),
        ("b'a' (t-0 offset 3)", "offset 5"),
    ),
    "unseen": (
        (write(OK, at(3, b"a")), write(OK, at(4, b"b")), poll(at(3, b"a"))),
        ("b'b' (t-0 offset 4)",),
    ),
    "torn-transaction": (
        (write(INFO, at(3, b"a"), at(7, b"b", Q)), poll(at(3, b"a"), at(8, b"z", Q))),
        ("b'a' (t-0 offset 3) was polled", "b'b' (t-1 offset 7) was not"),
    ),
    "poll-skip": (
        (poll(at(3, b"a")), poll(at(5, b"c")), poll(at(4, b"b"), process="d")),
        ("c polled b'c' (t-0 offset 5)", "b'b' at 4"),
    ),
    "nonmonotonic-poll": (
        (poll(at(3, b"a")), poll(at(3, b"a"))),
        ("c polled b'a' (t-0 offset 3)", "offset 4 was next"),
    ),
    "int-poll-skip": (
        (poll(at(3, b"a"), at(5, b"c")), poll(at(4, b"b"), process="d")),
        ("b'c'", "b'b' at 4"),
    ),
    "int-nonmonotonic-poll": ((poll(at(4, b"b"), at(3, b"a")),), ("b'a'", "offset 5 was next")),
    "nonmonotonic-send": (
        (write(OK, at(4, b"a")), write(OK, at(3, b"b"), began_s=3), poll(at(3, b"b"), at(4, b"a"))),
        ("p sent b'b' (t-0 offset 3) after b'a' (t-0 offset 4)",),
    ),
    "int-nonmonotonic-send": (
        (write(OK, at(4, b"a"), at(3, b"b")), poll(at(3, b"b"), at(4, b"a"))),
        ("b'b'", "after b'a'"),
    ),
    "stale-read": (
        (Ack(P, 8, 1.0), Ack(P, 9, 2.0), Latest("broker 1", P, 5.1, 5.2, 9)),
        ("broker 1", "ends at 9; offset 9", "at 2.000 s"),
    ),
    "lost-commit": (
        (commit(4, OK, 1.0), commit(8, OK, 2.0), committed(4, 2.5)),
        ("'g' is at offset 4", "commit of 8", "at 2.000 s"),
    ),
    "consumed-twice": (
        (
            consumed(OK, 0, 5, at(0, b"a")),
            consumed(OK, 3, 8, at(1, b"b"), 3),
            poll(at(0, b"a"), at(1, b"b")),
            committed(8, 9),
        ),
        ("offsets 3 to 4 of t-0",),
    ),
    "consume-skip": (
        (
            consumed(OK, 0, 5, at(0, b"a")),
            consumed(OK, 6, 8, at(1, b"b"), 3),
            poll(at(0, b"a"), at(1, b"b")),
            committed(8, 9),
        ),
        ("offsets 5 to 5 of t-0",),
    ),
}


@pytest.mark.parametrize("name", ANOMALIES)
def test_each_anomaly_is_found_without_others(name: str) -> None:
    history, words = BAD[name]
    anomalies = found(*history)
    assert set(anomalies) == {name}
    for word in words:
        assert word in anomalies[name]


NEAR: dict[str, tuple[Operation, ...]] = {
    "a value without idempotence twice": (
        write(OK, at(3, b"a"), ordered=False),
        poll(at(3, b"a"), at(5, b"a")),
    ),
    "an aborted value for a reader of everything": (
        write(FAIL, at(3, b"a")),
        poll(at(3, b"a"), committed=False),
    ),
    "an uncommitted value for a reader of everything": (
        poll(at(3, b"a"), ended_s=1.2, committed=False),
        write(INFO, at(3, b"a")),
    ),
    "a poll that ends after the commit was requested": (
        poll(at(3, b"a"), ended_s=1.6),
        write(OK, at(3, b"a")),
    ),
    "an unknown transaction that did not happen": (
        write(INFO, at(3, b"a"), at(4, b"b")),
        poll(at(9, b"z")),
    ),
    "half of an unknown transaction, the rest not yet polled": (
        write(INFO, at(3, b"a"), at(7, b"b", Q)),
        poll(at(3, b"a"), at(6, b"z", Q)),
    ),
    "a hole in the log where a marker or an aborted value lies": (
        write(FAIL, at(4, b"x")),
        poll(at(3, b"a")),
        poll(at(6, b"b")),
    ),
    "a poll after a rebalance": (
        poll(at(3, b"a")),
        poll(at(4, b"b"), process="d"),
        Assign("c", ((P, UNKNOWN),)),
        poll(at(5, b"c")),
        Assign("c", ((P, UNKNOWN),)),
        poll(at(3, b"a")),
    ),
    "an assignment to an offset": (
        Assign("c", ((P, 4),)),
        poll(at(4, b"b")),
        poll(at(3, b"a"), at(4, b"b"), process="d"),
    ),
    "the order of another producer": (
        write(OK, at(4, b"a")),
        write(OK, at(3, b"b"), process="q"),
        poll(at(3, b"b"), at(4, b"a")),
    ),
    "the order of an aborted write": (
        write(OK, at(4, b"a")),
        write(FAIL, at(3, b"b"), began_s=3),
        poll(at(4, b"a")),
    ),
    "a response within the lease": (Ack(P, 9, 2.0), Latest("broker 1", P, 4.9, 9.9, 3)),
    "a response that has it": (Ack(P, 9, 2.0), Latest("broker 1", P, 8, 8.1, 10)),
    "another partition": (Ack(Q, 9, 2.0), Latest("broker 1", P, 8, 8.1, 0)),
    "a commit that was not acknowledged in time": (commit(8, OK, 2.0), committed(4, 1.9)),
    "a commit that was refused": (commit(8, FAIL, 2.0), commit(8, INFO, 2.0), committed(4, 2.5)),
    "a lower commit that was under way for long": (
        commit(4, OK, 3.0, lasts_s=2.5),
        commit(8, OK, 2.0),
        committed(4, 3.1),
    ),
    "a lower commit that may still be under way": (
        commit(4, INFO, 1.8),
        commit(8, OK, 2.0),
        committed(4, 3.1),
    ),
    "a lower commit of another member that may still be under way": (
        commit(4, INFO, 1.0, member="a"),
        commit(8, OK, 2.0, member="b"),
        committed(4, 3.1),
    ),
    "a late commit after the last acknowledged one of its member": (
        commit(8, OK, 1.0, member="a"),
        commit(4, INFO, 2.0, member="a"),
        committed(4, 3.1),
    ),
    "a lower commit that follows": (commit(8, OK, 2.0), commit(4, OK, 3.0), committed(4, 3.1)),
    "the commit of another group": (commit(8, OK, 2.0, group="h"), committed(UNKNOWN, 2.5)),
    "a transaction that consumed what an aborted one had": (
        consumed(FAIL, 0, 5, at(0, b"x")),
        consumed(INFO, 0, 5, at(2, b"y"), 3),
        consumed(OK, 0, 5, at(4, b"a"), 5),
        poll(at(4, b"a")),
        committed(5, 9),
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_correct_histories_similar_to_anomalies_pass(name: str) -> None:
    assert found(*NEAR[name]) == {}


def test_transactional_offsets_count_as_commits_of_their_group() -> None:
    history = (consumed(OK, 0, 5, at(0, b"a")), poll(at(0, b"a")), committed(3, 2.5))
    assert set(found(*history)) == {"lost-commit"}


def test_a_later_lower_commit_does_not_hide_an_earlier_loss() -> None:
    history = (commit(8, OK, 2.0), committed(4, 2.2), commit(5, OK, 3.0), committed(5, 3.1))
    assert [anomaly.name for anomaly in find_anomalies(history, LEASE_S)] == ["lost-commit"]


def test_a_late_commit_does_not_undo_a_later_commit_of_its_member() -> None:
    history = (
        commit(4, INFO, 1.0, member="a"),
        commit(8, OK, 2.0, member="a"),
        committed(4, 3.1),
    )
    assert set(found(*history)) == {"lost-commit"}


def test_offsets_committed_without_their_transaction_are_found() -> None:
    history = (
        consumed(INFO, 0, 5, at(0, b"a")),
        consumed(OK, 5, 6, at(3, b"b"), 3),
        poll(at(3, b"b")),
        committed(6, 9),
    )
    assert "offsets 0 to 4" in found(*history)["consume-skip"]


def test_an_unknown_transaction_counts_if_one_of_its_values_was_polled() -> None:
    history = (
        consumed(INFO, 0, 5, at(0, b"a")),
        consumed(OK, 0, 5, at(2, b"b"), 3),
        poll(at(0, b"a"), at(2, b"b")),
    )
    assert set(found(*history)) == {"consumed-twice"}


def test_reading_a_whole_partition_reveals_missing_values() -> None:
    """A value with an unknown offset must have been polled if its partition was read to the end."""
    history = (write(INFO, at(3, b"a"), at(UNKNOWN, b"b")), poll(at(3, b"a")))
    assert found(*history) == {}
    assert set(found(*history, ends={P: 9})) == {"torn-transaction"}
    assert set(found(write(OK, at(3, b"a")), ends={P: 9})) == {"lost-write"}
    assert set(found(write(OK, at(3, b"a")), ends={P: 3})) == {"unseen"}


def test_a_late_marker_is_reported() -> None:
    """T1 is aborted and T2 writes. The late copy of T1's marker ends T2: its earlier writes are
    lost, the later ones are present.
    """
    history = (
        write(FAIL, at(0, b"a"), at(0, b"b", Q)),
        write(OK, at(2, b"c"), at(2, b"d", Q), at(4, b"e"), began_s=3),
        poll(at(2, b"d", Q), at(4, b"e")),
    )
    anomalies = found(*history, ends={P: 6, Q: 4})
    assert set(anomalies) == {"lost-write", "torn-transaction"}
    assert "b'c' (t-0 offset 2)" in anomalies["lost-write"]
