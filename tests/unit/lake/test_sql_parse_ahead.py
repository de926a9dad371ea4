"""The scan of a statement is read and parsed ahead, and stops with the statement."""

from collections.abc import Generator
from threading import Barrier, get_ident

import pytest

from penstock.lake.sql.parse_ahead import parse_ahead

_LIMIT_S = 30


class Source:
    """Batches as numbers. read: the batches read so far. is_closed: whether the scan was closed."""

    def __init__(self, count: int, fails_at: int = -1) -> None:
        self.read: list[int] = []
        self.is_closed = False
        self._count = count
        self._fails_at = fails_at

    def batches(self) -> Generator[int, None, None]:
        try:
            for number in range(self._count):
                self.read.append(number)
                if number == self._fails_at:
                    raise OSError("the store is away")
                yield number
        finally:
            self.is_closed = True


def _text(number: int) -> str:
    return f"parsed {number}"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_results_come_in_order(count: int) -> None:
    source = Source(count)
    assert list(parse_ahead(source.batches(), _text, 3)) == [_text(n) for n in range(count)]
    assert source.is_closed


def test_batches_after_the_first_are_parsed_concurrently() -> None:
    together, threads = Barrier(3, timeout=_LIMIT_S), set[int]()

    def parse(number: int) -> int:
        if number:
            threads.add(get_ident())
            together.wait()  # raises an error unless three threads arrive
        return number

    assert list(parse_ahead(Source(7).batches(), parse, 3)) == list(range(7))
    assert len(threads) == 3
    assert get_ident() not in threads


def test_a_statement_that_needs_one_batch_reads_only_one() -> None:
    source = Source(5)
    ahead = parse_ahead(source.batches(), _text, 2)
    assert next(ahead) == "parsed 0"
    ahead.close()
    assert source.read == [0]
    assert source.is_closed


def test_a_statement_that_stops_early_reads_one_more_batch_than_parsers() -> None:
    source = Source(9)
    ahead = parse_ahead(source.batches(), _text, 2)
    assert [next(ahead), next(ahead)] == ["parsed 0", "parsed 1"]
    ahead.close()
    assert source.read in ([0, 1], [0, 1, 2], [0, 1, 2, 3])
    assert source.is_closed


def test_a_scan_error_is_raised_after_earlier_results() -> None:
    source = Source(5, fails_at=2)
    ahead = parse_ahead(source.batches(), _text, 2)
    assert [next(ahead), next(ahead)] == ["parsed 0", "parsed 1"]
    with pytest.raises(OSError, match="the store is away"):
        next(ahead)
    assert source.is_closed


def test_a_parser_error_is_raised_after_earlier_results() -> None:
    source = Source(9)

    def parse(number: int) -> int:
        if number == 3:
            raise ValueError("no JSON")
        return number

    ahead = parse_ahead(source.batches(), parse, 2)
    assert [next(ahead), next(ahead), next(ahead)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no JSON"):
        next(ahead)
    assert source.is_closed
