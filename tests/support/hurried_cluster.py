"""`penstock dev` with brokers that write small objects every 0.5 s, and controllers that delete
objects early.

`compacting`: brokers also compact their own small objects; otherwise they leave them to the code
under test. Replaced objects are kept for 10 s, because readers may plan with an older manifest.
"""

from collections.abc import Sequence
from typing import Final

from tests.support.dev_cluster import DevCluster

_SETTINGS: Final = (
    "upload.block.max.age.ms=500",
    "wal.delete.grace.ms=10000",
    "compaction.interval.ms=1000",
    "object.delete.grace.ms=10000",
    "object.prepared.grace.ms=2000",
    "object.delete.interval.ms=500",
)


class HurriedCluster(DevCluster):
    def __init__(self, arguments: Sequence[str] = (), *, compacting: bool = False) -> None:
        settings = (*_SETTINGS, f"compaction.small.range.min.count={3 if compacting else 1_000}")
        super().__init__(
            (
                "--log-level",
                "error",
                *(part for setting in settings for part in ("--set", setting)),
                *arguments,
            )
        )
