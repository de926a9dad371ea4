"""The cluster of one test: everything that the test creates is deleted afterwards.

Invariant: at the start of a test, there are no topics and consumer groups of earlier tests, all
brokers are running, and there are no store faults, whatever earlier tests did and however they
ended. Topics that `penstock_cluster` created before the test are kept.
"""

from typing import TYPE_CHECKING

from penstock.deploy.errors import UsageError
from penstock.testing.cluster import PenstockCluster
from penstock.testing.control import Begin, End

if TYPE_CHECKING:
    from penstock.testing.client import KafkaClient
    from penstock.testing.process import ClusterProcess


class Penstock(PenstockCluster):
    """The constructor begins the test, and `end` ends it."""

    def __init__(self, process: "ClusterProcess", client: "KafkaClient", test: str) -> None:
        """`client` is shared by the whole run, because opening connections would take most of the
        time of a test.
        """
        super().__init__(process, client)
        self._test = test
        self._is_over = False
        process.send_request(Begin())

    def end(self) -> None:
        """Clean up. All later calls fail."""
        self._is_over = True
        self._process.send_request(End())

    def _check_usable(self) -> None:
        if self._is_over:
            raise UsageError(
                f"this `penstock` belongs to the test {self._test}, which has ended; use the"
                " fixture of the current test, or `penstock_cluster` across tests"
            )
