"""`penstock dev` with brokers that cut small objects every half second, and controllers that delete soon: minutes of work in seconds.

merging: brokers join their own small objects too, a few at a time; otherwise they leave them to whoever is being tested. Only numbers are
changed, by a module that Python runs at the start of every process of the cluster.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from deploy.cluster.handle import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
_STREAM = {"block_age_max_ms": 500, "wal_delete_grace_ms": 1_000}
_CONTROLLER = ("--read-grace-ms", "2000", "--late-put-grace-ms", "2000", "--janitor-interval-ms", "500")


class HurriedCluster(LocalCluster):
    def __init__(self, arguments: Sequence[str] = (), *, merging: bool = False) -> None:
        super().__init__(("--log-level", "error", *arguments))
        self._started_by = tempfile.TemporaryDirectory()
        source = f"from tests.support.hurried_cluster import hurry\n\nhurry(merging={merging})\n"
        Path(self._started_by.name, "sitecustomize.py").write_text(source)

    def __enter__(self) -> Self:
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{self._started_by.name}:{ROOT}"
        try:
            return super().__enter__()
        finally:
            os.environ.pop("PYTHONPATH")
            if before is not None:
                os.environ["PYTHONPATH"] = before

    def close(self) -> None:
        super().close()
        self._started_by.cleanup()


def hurry(*, merging: bool) -> None:
    """Change defaults of this process: of a broker's streams, and of what the supervisor tells its controllers."""
    from deploy.cluster import plan
    from stream.compaction.plan import CompactionConfig
    from stream.config import StreamConfig

    _defaults(StreamConfig).update(_STREAM)
    compaction = {"interval_ms": 1_000, "small_count_min": 3} if merging else {"interval_ms": 1_000, "small_count_min": 100_000}
    _defaults(CompactionConfig).update(compaction)
    told: Any = plan._controller_flags
    plan._controller_flags = lambda *arguments: (*told(*arguments), *_CONTROLLER)  # type: ignore[assignment]


def _defaults(config: type) -> dict[str, Any]:
    found: Any = config.__init__
    defaults: dict[str, Any] = found.__kwdefaults__
    return defaults
