"""Run a cluster on this machine from Python programs and notebooks."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final, Self

from penstock.base.errors import ExpectedError
from penstock.deploy.errors import ClusterFailed
from penstock.deploy.local.dev_cluster import check
from penstock.deploy.local.handle import LocalCluster
from penstock.deploy.local.plan import ClusterOptions

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
_MEMORY_BYTES_MIN: Final = 1 << 30
"""Free space required in `/dev/shm`; containers often have only 64 MiB."""

_MANIFEST_INTERVAL_MS: Final = 100
"""Short, because programs scan a topic immediately after creating it. With the default of 1 s, the
manifest would often not contain the topic yet.
"""


class Cluster:
    """A Kafka cluster on this machine: `penstock dev` in child processes, on free ports.

    Use it in a `with` block, or call `start` and `close`. The processes end with the block, and
    with this process if it dies. A new topic is in the manifest, and so visible to `scan` and
    `topics`, within about 0.1 s.

    Args:
        brokers: The number of brokers, 1 to 32.
        store: The store of the objects, as in `penstock dev --store`. `memory` is a private
            directory that is deleted at the end; it is in memory if `/dev/shm` has 1 GiB free.
            `moto` is an S3 server in memory (`local` extra). `file:DIR` and
            `s3://BUCKET?endpoint=URL` keep their data.

    Raises:
        ClusterFailed: An argument is not allowed, or `moto` is chosen without the `local` extra.

    Example:
        >>> from confluent_kafka import Producer
        >>> from penstock import Cluster, scan
        >>> with Cluster() as cluster:
        ...     producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        ...     producer.produce("orders", "paid")
        ...     _ = producer.flush()
        ...     scan(cluster.store, "orders").to_table().num_rows
        1
    """

    def __init__(self, brokers: int = 1, store: str = "memory") -> None:
        self._brokers = brokers
        try:
            self._store = check(ClusterOptions(brokers=brokers, store=store)).store
        except ExpectedError as error:
            raise ClusterFailed(str(error)) from None
        self._objects: Path | None = None
        self._cluster: LocalCluster | None = None

    def start(self) -> Self:
        """Start the processes and wait until every broker serves requests.

        Raises:
            ClusterFailed: The cluster is already running, or did not start: see its log on stderr.
        """
        if self._cluster is not None:
            raise ClusterFailed("the cluster is already running")
        store = self._store
        if store == "memory":
            self._objects = _private_directory()
            store = f"file:{self._objects}"
        arguments = (
            "--brokers",
            str(self._brokers),
            "--store",
            store,
            "--set",
            f"manifest.interval.ms={_MANIFEST_INTERVAL_MS}",
        )
        try:
            self._cluster = LocalCluster(arguments).__enter__()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop the processes. Does nothing if the cluster is not running."""
        cluster, self._cluster = self._cluster, None
        objects, self._objects = self._objects, None
        try:
            if cluster is not None:
                cluster.close()
        finally:
            if objects is not None:
                shutil.rmtree(objects, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT` of every broker, separated by commas, for the `bootstrap.servers` setting of
        any Kafka client.
        """
        return self._running().bootstrap

    @property
    def store(self) -> str:
        """The URL of the object store, for `scan`, `topics` and Spark's `store` option."""
        return self._running().state().store_url

    def _running(self) -> LocalCluster:
        if self._cluster is None:
            raise ClusterFailed(
                "the cluster is not running: use it in a `with` block, or call start()"
            )
        return self._cluster


def _private_directory() -> Path:
    """Return a new directory, in memory if `/dev/shm` has room."""
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    return Path(tempfile.mkdtemp(prefix="penstock-cluster-", dir=_MEMORY if has_room else None))
