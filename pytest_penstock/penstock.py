"""The cluster as one test sees it: what it makes is gone afterwards.

Invariant: a test finds no topic and no consumer group of an earlier one, all brokers up and the
store without faults, whatever that one did and however it ended. What `penstock_cluster` was used
for before the test began stays.
"""

from typing import TYPE_CHECKING

from deploy.errors import UsageError
from pytest_penstock.cluster import PenstockCluster
from pytest_penstock.control import Begin, End

if TYPE_CHECKING:
    from pytest_penstock.client import KafkaClient
    from pytest_penstock.process import ClusterProcess


class Penstock(PenstockCluster):
    """`begin` before the test, `end` after it."""

    def __init__(self, process: "ClusterProcess", client: "KafkaClient", test: str) -> None:
        """client: the run's; opening connections anew would be most of a test's cost."""
        super().__init__(process, client)
        self._test = test
        self._is_over = False
        process.ask(Begin())

    def end(self) -> None:
        """Clean up; every later call fails."""
        self._is_over = True
        self._process.ask(End())

    def _check_usable(self) -> None:
        if self._is_over:
            raise UsageError(
                f"this `penstock` belongs to the test {self._test}, which is over; take the fixture"
                " of the test that runs, or `penstock_cluster` for what outlives a test"
            )
