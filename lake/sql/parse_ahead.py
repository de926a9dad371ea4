"""Read and parse the batches of a scan ahead of the statement that consumes them.

Invariant: results are in the order of the batches, and an error follows the results before it.
Memory: the consumed batch, one batch per parser, and one more batch.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

_Batch = TypeVar("_Batch")
_Parsed = TypeVar("_Parsed")


def parse_ahead(
    batches: Generator[_Batch, None, None], parse: Callable[[_Batch], _Parsed], parsers: int
) -> Generator[_Parsed, None, None]:
    """Yield `parse(batch)` for each batch.

    The caller's thread reads and parses the first batch, so that nothing else is read for a
    statement that needs only this batch. Then one thread reads, and up to `parsers` threads parse
    concurrently.
    """
    with closing(batches):
        if (first := next(batches, None)) is None:
            return
        yield parse(first)
        del first
        with (
            ThreadPoolExecutor(parsers, thread_name_prefix="penstock-sql-parse") as pool,
            ThreadPoolExecutor(1, thread_name_prefix="penstock-sql-scan") as thread,
        ):

            def read() -> Future[_Parsed] | None:
                batch = next(batches, None)
                return None if batch is None else pool.submit(parse, batch)

            coming = deque(thread.submit(read) for _ in range(parsers + 1))
            try:
                while (parsed := coming.popleft().result()) is not None:
                    yield parsed.result()
                    coming.append(thread.submit(read))
            finally:
                for each in coming:
                    each.cancel()
