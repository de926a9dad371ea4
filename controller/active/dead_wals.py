"""Track how long the writers of WALs in WAL stores have been dead, to determine when their leases
have ended. Without a fence, only the end of its lease stops a writer.
"""

from typing import Final

from penstock.base.clock import MonotonicClock
from penstock.base.ids import WalStoreId
from penstock.controller.metadata.image import MetadataImage
from penstock.stream.ports import IN_STORE, BrokerIncarnation

LEASES_WAITED: Final = 2
"""Number of session timeouts after which a dead writer can no longer acknowledge. A lease is
shorter than one timeout, but the writer may have renewed it with a controller that had just lost
the leadership.
"""


class DeadWals:
    """The dead WALs in WAL stores that this process has detected. A new active controller starts
    over.
    """

    def __init__(self, session_timeout_ms: int, now: MonotonicClock) -> None:
        self._wait_s = LEASES_WAITED * session_timeout_ms / 1_000
        self._now = now
        self._since: dict[BrokerIncarnation, float] = {}

    def note(self, image: MetadataImage) -> None:
        now, known = self._now(), self._since
        self._since = {
            wal.writer: known.get(wal.writer, now)
            for wal in image.nodes.running_wals()
            if wal.store_id != IN_STORE and not image.nodes.is_alive(wal.writer)
        }

    def wait_s(self, image: MetadataImage, store_id: WalStoreId) -> float:
        """Return how long a dead writer of a WAL in this store may still acknowledge records."""
        self.note(image)
        ends = [
            since + self._wait_s - self._now()
            for writer, since in self._since.items()
            if (wal := image.nodes.wal(writer)) is not None and wal.store_id == store_id
        ]
        return max([0.0, *ends])
