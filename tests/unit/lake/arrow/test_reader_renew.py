"""A renewed plan contains the same offsets of the same streams, or raises an error that lists the
lost ones.
"""

import pickle
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.base.errors import StreamError
from penstock.lake.arrow import renew
from penstock.lake.arrow.columns import DEFAULT
from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.arrow.renew import (
    look_up_aborted,
    ranges_of,
    read_renewed,
    replan_slices,
)
from penstock.lake.fetch.errors import ObjectGone, ObjectStillMissing
from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.errors import OffsetsLost, TopicReplaced, UnknownPartition
from penstock.lake.manifest.plan import OffsetRange
from penstock.stream.format.transaction_log import AbortedTransaction
from tests.support.waiting import PATIENCE_S

LEFT = [
    Slice("wal/1", 10, "a", 0, 7, 0, 10, 1, 1),
    Slice("wal/2", 10, "a", 0, 7, 10, 20, 1, 1),
    Slice("wal/2", 10, "b", 1, 8, 5, 9, 1, 1),
]


def merged(ranges: Sequence[OffsetRange]) -> list[Slice]:
    return [
        Slice(
            "data/1",
            10,
            *item[:2],
            {"a": 7, "b": 8}[item.topic],
            item.start_offset,
            item.end_offset,
            1,
            1,
        )
        for item in ranges
    ]


def test_the_same_offsets_are_planned() -> None:
    assert ranges_of(LEFT) == [OffsetRange("a", 0, 0, 20), OffsetRange("b", 1, 5, 9)]
    assert ranges_of(replan_slices(merged, LEFT)) == ranges_of(LEFT)


def test_losses_are_reported_or_skipped_if_allowed() -> None:
    def plan(ranges: Sequence[OffsetRange]) -> list[Slice]:
        for item in ranges:
            if item.topic == "a" and item.start_offset < 15:
                raise OffsetsLost("a", 0, item.start_offset, 15, 15)
            if item.topic == "b":
                raise UnknownPartition("b", None)
        return merged(ranges)

    with pytest.raises(OffsetsLost):
        replan_slices(plan, LEFT)
    losses: list[StreamError] = []
    assert ranges_of(replan_slices(plan, LEFT, losses.append)) == [OffsetRange("a", 0, 15, 20)]
    assert [type(error) for error in losses] == [OffsetsLost, UnknownPartition]


@pytest.mark.parametrize("is_same", [True, False])
def test_repeated_failures_after_replanning_raise_an_error_with_advice(
    monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    class Cluster:
        store_url = "memory:"
        wal_store_url = ""
        plans = 0

        def replan(self, ranges: Sequence[OffsetRange]) -> list[Slice]:
            self.plans += 1
            return [
                replace(item, key="data/1" if is_same else f"data/{self.plans}")
                for item in merged(ranges)
            ]

    def read(
        _: str, slices: Sequence[Slice], *__: object, **___: object
    ) -> Generator[RecordBatch, None, None]:
        yield from ()
        raise ObjectGone(slices[0], tuple(slices[1:]))

    monkeypatch.setattr(renew, "read_slices_sync", read)
    cluster: Any = Cluster()
    with pytest.raises(ObjectStillMissing) as raised:
        list(read_renewed(cluster, LEFT[:1], DEFAULT, pause_ms=0))
    assert cluster.plans == 3
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.slice, error.plans, error.is_same) == (raised.value.slice, 4, is_same)
    assert str(error) == str(raised.value)
    for part in ("a-0: offsets [0, 10)", error.slice.key, "penstock doctor", "Restore the object"):
        assert part in str(error)
    assert ("the store has lost it" in str(error)) == is_same
    assert "plan these offsets again" not in str(error)


def test_a_recreated_topic_is_not_the_same_topic() -> None:
    def plan(ranges: Sequence[OffsetRange]) -> list[Slice]:
        return [
            replace(item, stream_id=99) if item.topic == "a" else item for item in merged(ranges)
        ]

    with pytest.raises(TopicReplaced, match="'a'"):
        replan_slices(plan, LEFT)
    losses: list[StreamError] = []
    assert ranges_of(replan_slices(plan, LEFT, losses.append)) == [OffsetRange("b", 1, 5, 9)]
    assert [str(error) for error in losses] == [str(TopicReplaced("a"))]


def test_ranges_whose_transactions_are_no_longer_known_are_lost() -> None:
    aborted = {7: [AbortedTransaction(1, 12, 18)], 8: []}

    def lookup(ranges: Sequence[OffsetRange]) -> dict[int, list[AbortedTransaction]]:
        if ranges[0].start_offset < 13:
            raise OffsetsLost("a", 0, ranges[0].start_offset, 13, 13)
        if any(item.topic == "b" for item in ranges):
            raise UnknownPartition("b", None)
        return aborted

    with pytest.raises(OffsetsLost):
        look_up_aborted(lookup, LEFT)
    losses: list[StreamError] = []
    slices, found = look_up_aborted(lookup, LEFT, losses.append)
    assert ([(part.key, part.start_offset, part.end_offset) for part in slices], found) == (
        [("wal/2", 13, 20)],
        aborted,
    )
    assert [type(error) for error in losses] == [OffsetsLost, UnknownPartition]
    with pytest.raises(TopicReplaced):
        look_up_aborted(lambda _: {8: []}, LEFT)
    losses = []
    slices, _ = look_up_aborted(lambda _: {8: []}, LEFT, losses.append)
    assert [part.topic for part in slices] == ["b"]


def test_planners_are_imported_without_pyarrow() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import penstock.lake.arrow.cluster"
        "; import penstock.lake.fetch.slices, penstock.lake.manifest.view"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
