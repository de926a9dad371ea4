"""`penstock dev` with brokers that write small objects every 0.5 s, and controllers that delete
soon: minutes of work in seconds.

compacting: brokers compact their own small objects too, a few at a time; otherwise they leave them
to the code under test. Replaced objects stay for 10 s: readers plan by a manifest that may be 1 s
old, or more on a busy machine.
"""

from collections.abc import Sequence
from typing import Final

from penstock.deploy.local.handle import LocalCluster

_SETTINGS: Final = (
    "upload.block.max.age.ms=500",
    "wal.delete.grace.ms=10000",
    "compaction.interval.ms=1000",
    "object.delete.grace.ms=10000",
    "object.prepared.grace.ms=2000",
    "object.delete.interval.ms=500",
)


class HurriedCluster(LocalCluster):
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
