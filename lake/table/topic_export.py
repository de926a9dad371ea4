"""The export of one declared table into the warehouse of a runner."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.base.log import get_logger
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.table.compact import compact
from penstock.lake.table.declared import DeclaredTable
from penstock.lake.table.engines import Engine, InlineEngine
from penstock.lake.table.errors import TableError
from penstock.lake.table.model import Layout
from penstock.lake.table.schedule import Exported
from penstock.lake.table.source import TopicSource
from penstock.lake.table.sync import SyncOptions, TableSync
from penstock.lake.table.warehouse import REJECTS_SUFFIX, Warehouse
from penstock.objectstore.errors import ObjectStoreError
from penstock.protocol.registry.settings import RegistrySettings

COMPACT_EVERY: Final = 20
"""A compaction follows every batch whose number is a multiple of this one, whichever process writes
it.
"""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Exports:
    """Open the exports of declared tables. `options` apply to all of them; the configs of a topic
    take precedence.
    """

    cluster: StoreCluster
    warehouse: Warehouse
    options: SyncOptions
    registry: RegistrySettings | None = None
    engine: Engine = field(default_factory=InlineEngine)
    compact_every: int = COMPACT_EVERY

    def open(self, table: DeclaredTable) -> "WarehouseExport":
        """Raise TableError, RegistryError."""
        options = table.sync_options(self.options, self.registry)
        warehouse = replace(self.warehouse, kind=table.settings.format)
        sync = TableSync(
            TopicSource(self.cluster, table.topic),
            warehouse.table(table.table, options.layout),
            warehouse.table(table.table + REJECTS_SUFFIX, Layout(keeps_existing=True)),
            self.engine,
            options,
        )
        return WarehouseExport(
            table, sync, warehouse, self.engine, compact_every=self.compact_every
        )


class WarehouseExport:
    def __init__(
        self,
        table: DeclaredTable,
        sync: TableSync,
        warehouse: Warehouse,
        engine: Engine,
        *,
        compact_every: int = COMPACT_EVERY,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._table = table
        self._sync = sync
        self._warehouse = warehouse
        self._engine = engine
        self._compact_every = compact_every
        self._wall_ms = wall_ms

    def turn(self) -> Exported:
        began_ms = self._wall_ms()
        report = self._sync.run_batch()
        if report is None:
            return Exported(began_ms=began_ms)
        if self._table.settings.compacts and report.batch_id % self._compact_every == 0:
            self._compact()
        return Exported(
            began_ms=began_ms,
            remaining=report.remaining,
            committed=True,
            rows=report.rows,
            rejected=report.rejected,
            skipped=report.skipped,
        )

    def _compact(self) -> None:
        """Merge small files. A failure is logged: the next compaction merges the same files."""
        try:
            report = compact(self._warehouse.existing(self._table.table), self._engine)
        except (TableError, ObjectStoreError, OSError) as error:
            _log.warning("table_not_compacted", table=self._table.table, error=str(error))
            return
        _log.info(
            "table_compacted",
            table=self._table.table,
            files_replaced=report.files_replaced,
            files_written=report.files_written,
        )
