"""The scan of a statement reads one batch ahead, and ends with the statement."""

from collections.abc import Generator
from typing import Any

import pytest

from lake.sql.topic_table import read_ahead


class Source:
    """Batches as numbers. read: those that were asked for. is_closed: whether the scan ended."""

    def __init__(self, count: int, fails_at: int = -1) -> None:
        self.read: list[int] = []
        self.is_closed = False
        self._count = count
        self._fails_at = fails_at

    def batches(self) -> Generator[Any, None, None]:
        try:
            for number in range(self._count):
                self.read.append(number)
                if number == self._fails_at:
                    raise OSError("the store is away")
                yield number
        finally:
            self.is_closed = True


def test_batches_come_in_order() -> None:
    source = Source(5)
    assert list(read_ahead(source.batches())) == [0, 1, 2, 3, 4]
    assert source.is_closed


def test_a_statement_that_needs_one_batch_reads_one() -> None:
    source = Source(5)
    ahead = read_ahead(source.batches())
    assert next(ahead) == 0
    ahead.close()
    assert source.read == [0]
    assert source.is_closed


def test_a_statement_that_ends_early_closes_the_scan_behind_the_batch_that_comes() -> None:
    source = Source(5)
    ahead = read_ahead(source.batches())
    assert [next(ahead), next(ahead)] == [0, 1]
    ahead.close()
    assert source.read == [0, 1, 2]
    assert source.is_closed


def test_an_error_comes_behind_the_batches_before_it() -> None:
    source = Source(5, fails_at=2)
    ahead = read_ahead(source.batches())
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(OSError, match="the store is away"):
        next(ahead)
    assert source.is_closed
