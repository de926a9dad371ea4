"""The public Python API of Penstock: read topics from the object store, and run a cluster on this
machine.

Example:
    >>> from penstock import scan, topics
    >>> store = "s3://my-bucket?region=eu-west-1"
    >>> [topic.name for topic in topics(store)]
    ['orders']
    >>> scan(store, "orders").to_table().num_rows
    1000

Every name is imported on first use, so `import penstock` is fast and needs no extra. The
`local` extra contains the packages of `scan`, `sql` and `Cluster(store="moto")`; `reader` and `sql`
make them faster. `penstock.spark` needs the `spark` extra. All other names below `penstock` are
internal and may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from penstock.base.installation import check_folder as _check_folder
from penstock.base.version import VERSION as __version__

_check_folder(__path__[0])

if TYPE_CHECKING:
    from penstock.base.errors import StreamError as StreamError
    from penstock.deploy.errors import ClusterFailed as ClusterFailed
    from penstock.lake.arrow.topic_scan import Scan as Scan
    from penstock.lake.arrow.topic_scan import scan as scan
    from penstock.lake.fetch.errors import ObjectStillMissing as ObjectStillMissing
    from penstock.lake.fetch.errors import ReadError as ReadError
    from penstock.lake.fetch.limits import ReadConfig as ReadConfig
    from penstock.lake.manifest.errors import EndInDoubt as EndInDoubt
    from penstock.lake.manifest.errors import ManifestNotFound as ManifestNotFound
    from penstock.lake.manifest.errors import OffsetsLost as OffsetsLost
    from penstock.lake.manifest.errors import OffsetsMissing as OffsetsMissing
    from penstock.lake.manifest.errors import SeveralClusters as SeveralClusters
    from penstock.lake.manifest.errors import TopicReplaced as TopicReplaced
    from penstock.lake.manifest.errors import UnknownPartition as UnknownPartition
    from penstock.lake.sql.api import sql as sql
    from penstock.lake.sql.errors import SqlError as SqlError
    from penstock.lake.sql.errors import SqlStopped as SqlStopped
    from penstock.lake.sql.result import SqlResult as SqlResult
    from penstock.lake.table.values import ValueFormat as ValueFormat
    from penstock.local_cluster import Cluster as Cluster
    from penstock.objectstore.errors import ObjectStoreError as ObjectStoreError
    from penstock.topic_list import Topic as Topic
    from penstock.topic_list import topics as topics

_MODULES: Final = {
    "Cluster": "penstock.local_cluster",
    "ClusterFailed": "penstock.deploy.errors",
    "EndInDoubt": "penstock.lake.manifest.errors",
    "ManifestNotFound": "penstock.lake.manifest.errors",
    "ObjectStillMissing": "penstock.lake.fetch.errors",
    "ObjectStoreError": "penstock.objectstore.errors",
    "OffsetsLost": "penstock.lake.manifest.errors",
    "OffsetsMissing": "penstock.lake.manifest.errors",
    "ReadConfig": "penstock.lake.fetch.limits",
    "ReadError": "penstock.lake.fetch.errors",
    "Scan": "penstock.lake.arrow.topic_scan",
    "SeveralClusters": "penstock.lake.manifest.errors",
    "SqlError": "penstock.lake.sql.errors",
    "SqlResult": "penstock.lake.sql.result",
    "SqlStopped": "penstock.lake.sql.errors",
    "StreamError": "penstock.stream.errors",
    "Topic": "penstock.topic_list",
    "TopicReplaced": "penstock.lake.manifest.errors",
    "UnknownPartition": "penstock.lake.manifest.errors",
    "ValueFormat": "penstock.lake.table.values",
    "scan": "penstock.lake.arrow.topic_scan",
    "sql": "penstock.lake.sql.api",
    "topics": "penstock.topic_list",
}
"""The module that defines each public name."""

__all__ = [
    "Cluster",
    "ClusterFailed",
    "EndInDoubt",
    "ManifestNotFound",
    "ObjectStillMissing",
    "ObjectStoreError",
    "OffsetsLost",
    "OffsetsMissing",
    "ReadConfig",
    "ReadError",
    "Scan",
    "SeveralClusters",
    "SqlError",
    "SqlResult",
    "SqlStopped",
    "StreamError",
    "Topic",
    "TopicReplaced",
    "UnknownPartition",
    "ValueFormat",
    "__version__",
    "scan",
    "sql",
    "topics",
]

_EXTRAS: Final = {"numpy": "reader", "pyarrow": "reader", "duckdb": "sql"}
"""The extra that contains each package on which these modules depend."""


if not TYPE_CHECKING:  # type checkers see only the names above

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(_MODULES[name]), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRAS:
                raise
            from penstock.base.extras import install_hint

            extra = "sql" if _MODULES[name].startswith("penstock.lake.sql") else _EXTRAS[package]
            raise ImportError(
                f"penstock.{name} needs the package {package}: {install_hint(extra)}",
                name=package,
            ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
