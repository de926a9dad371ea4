"""Items that failed equally often are retried together, after a pause that doubles up
to a limit.
"""

from collections.abc import Collection

from penstock.base.shared_backoff import SharedBackoff
from tests.support.waiting import until

FIRST_S, MAX_S = 0.004, 0.1


async def test_the_pause_doubles_up_to_the_maximum() -> None:
    timers = SharedBackoff[str](FIRST_S, MAX_S, lambda _: None)
    pauses_s = [timers.add("a", failed_count) for failed_count in (0, 1, 2, 4, 5, 10_000)]
    assert pauses_s == [0.004, 0.008, 0.016, 0.064, MAX_S, MAX_S]
    timers.cancel()


async def test_items_with_equally_many_failures_are_due_together_and_once() -> None:
    due: list[list[str]] = []
    timers = SharedBackoff[str](FIRST_S, MAX_S, lambda items: due.append(list(items)))
    timers.add("first", 0)  # before the others: a stall of 4 ms would make all due together
    for item in ("c", "a", "b", "a"):
        timers.add(item, 1)
    await until(lambda: len(due) == 2)
    assert due == [["first"], ["c", "a", "b"]]


async def test_an_item_may_fail_again_while_it_is_due() -> None:
    attempts: list[int] = []

    def retry(items: Collection[str]) -> None:
        attempts.append(len(items))
        if len(attempts) < 3:
            for item in items:
                timers.add(item, 0)

    timers = SharedBackoff[str](FIRST_S, MAX_S, retry)
    timers.add("a", 0)
    timers.add("b", 0)
    await until(lambda: len(attempts) == 3)
    assert attempts == [2, 2, 2]


async def test_nothing_is_due_after_a_cancel() -> None:
    due: list[str] = []
    timers, others = (SharedBackoff[str](FIRST_S, MAX_S, due.extend) for _ in range(2))
    timers.add("cancelled", 0)
    others.add("other", 1)
    timers.cancel()
    await until(lambda: due)
    assert due == ["other"]
