"""The export of one declared table into the warehouse of a runner."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from threading import Lock
from typing import Final

from penstock.base.clock import wall_ms
from penstock.base.log import get_logger
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.table.compact import compact
from penstock.lake.table.declared import DeclaredTable
from penstock.lake.table.engines import Engine, InlineEngine
from penstock.lake.table.errors import TableError
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.model import Layout, Maintained, Retention
from penstock.lake.table.schedule import Exported
from penstock.lake.table.source import TopicSource
from penstock.lake.table.sync import TableSync
from penstock.lake.table.warehouse import REJECTS_SUFFIX, Warehouse
from penstock.objectstore.errors import ObjectStoreError
from penstock.protocol.registry.settings import RegistrySettings

COMPACT_EVERY: Final = 20
"""Compaction runs after every batch whose number is a multiple of this, regardless of the process
that wrote it.
"""

MAINTAIN_S: Final = 86_400.0
MAINTAIN_FIRST_S_MAX: Final = 3_600.0
"""Maximum time before the first maintenance of a table by a process; later ones follow at intervals
of `MAINTAIN_S`.
"""

_log = get_logger(__name__)


class MaintenanceTurns:
    """Decides which turns include maintenance: one table at a time, so that maintenance delays at
    most one export. The times are kept only in memory, because correctness does not depend on them.
    Used by all threads.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, rng: Random | None = None
    ) -> None:
        self._clock = clock
        self._rng = rng or Random()  # noqa: S311 - jitter
        self._lock = Lock()
        self._due_s: dict[str, float] = {}
        self._running = ""

    def begin(self, table: str) -> bool:
        """Return whether to maintain the table now. If so, the caller must call `end` after
        that.
        """
        now_s = self._clock()
        with self._lock:
            first_s = now_s + self._rng.uniform(0, MAINTAIN_FIRST_S_MAX)
            if self._running or self._due_s.setdefault(table, first_s) > now_s:
                return False
            self._running = table
            self._due_s[table] = now_s + MAINTAIN_S
            return True

    def end(self) -> None:
        with self._lock:
            self._running = ""


@dataclass(frozen=True, slots=True)
class Exports:
    """Opens the exports of declared tables. `options` apply to all of them; the configs of a topic
    take precedence.
    """

    cluster: StoreCluster
    warehouse: Warehouse
    options: SyncOptions
    registry: RegistrySettings | None = None
    engine: Engine = field(default_factory=InlineEngine)
    compact_every: int = COMPACT_EVERY
    maintenance: MaintenanceTurns = field(default_factory=MaintenanceTurns)

    def open(self, table: DeclaredTable) -> "WarehouseExport":
        """Return the export of a table. Raise TableError, RegistryError."""
        options = table.sync_options(self.options, self.registry)
        warehouse = replace(self.warehouse, kind=table.settings.format)
        sync = TableSync(
            TopicSource(self.cluster, table.topic),
            warehouse.table(table.table, options.layout),
            warehouse.table(table.table + REJECTS_SUFFIX, Layout(keeps_existing=True)),
            self.engine,
            options,
        )
        return WarehouseExport(self, table, sync, warehouse)


@dataclass(frozen=True, slots=True)
class WarehouseExport:
    exports: Exports
    declared: DeclaredTable
    sync: TableSync
    warehouse: Warehouse

    def turn(self) -> Exported:
        began_ms = wall_ms()
        report = self.sync.run_batch()
        every = self.exports.compact_every
        if report and self.declared.settings.compacts and report.batch_id % every == 0:
            self._compact()
        self._maintain()
        if report is None:
            return Exported(began_ms=began_ms)
        return Exported(
            began_ms=began_ms,
            remaining=report.remaining,
            committed=True,
            rows=report.rows,
            rejected=report.rejected,
            skipped=report.skipped,
        )

    def _maintain(self) -> None:
        """Expire snapshots and delete unused files, once a day. Failures are only logged, because
        the next maintenance continues.
        """
        settings, name = self.declared.settings, self.declared.table
        retention = Retention(settings.snapshot_retention_ms, settings.orphan_retention_ms)
        if retention == Retention() or not self.exports.maintenance.begin(name):
            return
        try:
            for table_name in (name, name + REJECTS_SUFFIX):
                table = self.warehouse.existing(table_name)
                if not table.state().exists:
                    continue
                removed = table.maintain(retention, wall_ms())
                if removed != Maintained():
                    _log.info(
                        "table_maintained",
                        table=table_name,
                        versions_removed=removed.versions,
                        files_removed=removed.files,
                        bytes_removed=removed.bytes,
                    )
        except Exception as error:  # noqa: BLE001 - the batch was committed: do not report a failure
            _log.warning("table_not_maintained", table=name, error=str(error))
        finally:
            self.exports.maintenance.end()

    def _compact(self) -> None:
        """Merge small files. Failures are only logged, because the next compaction merges the same
        files.
        """
        try:
            report = compact(self.warehouse.existing(self.declared.table), self.exports.engine)
        except (TableError, ObjectStoreError, OSError) as error:
            _log.warning("table_not_compacted", table=self.declared.table, error=str(error))
            return
        _log.info(
            "table_compacted",
            table=self.declared.table,
            files_replaced=report.files_replaced,
            files_written=report.files_written,
            conflicts=report.conflicts,
        )
