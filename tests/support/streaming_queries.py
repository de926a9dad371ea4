"""Start streaming queries again if the Python process of their source could not connect.

Spark gives this process ten seconds to connect (PythonWorkerFactory; there is no option), which can
be too short on a busy machine. In production a supervisor restarts such a query.
"""

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from tests.support.waiting import wait_until

LIFE_S = 500.0
"""Limit for one driver or query, mostly for starting the JVM on a busy machine."""


def could_not_connect(error: BaseException | None) -> bool:
    return "failed to connect back" in str(error)


def until_ended(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Return the query after it has ended. Raises StreamingQueryException if it fails."""
    while True:
        query = start()
        try:
            assert query.awaitTermination(LIFE_S), "the query has not ended"
        except StreamingQueryException as error:
            if not could_not_connect(error):
                raise
        else:
            return query


def until_begun(
    start: Callable[[], StreamingQuery], has_begun: Callable[[], object]
) -> StreamingQuery:
    """Return the running query once the condition is true, or the query after it has failed."""
    while True:
        query = start()
        wait_until(lambda query=query: has_begun() or not query.isActive, LIFE_S)
        if query.isActive or not could_not_connect(query.exception()):
            return query
