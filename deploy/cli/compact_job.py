"""Run a bulk rewrite for the command line: set up the connection to the controllers, the engine for
its tasks, and one event loop for both.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.clock import wall_ms
from penstock.base.errors import ExpectedError
from penstock.base.ids import StreamId
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import RequestRefused, StreamRefused
from penstock.controller.api.messages import CommitObject
from penstock.controller.api.rewrite_messages import (
    CommitRewrite,
    PrepareRewrite,
    RewriteItem,
    RewriteSource,
)
from penstock.controller.metadata.records import RangeEntry
from penstock.deploy.clients.controllers import connect
from penstock.deploy.errors import NoController
from penstock.lake.manifest.view import ClusterView
from penstock.lake.rewrite.job import RewriteJob, RewriteResult, RewriteTask
from penstock.lake.rewrite.plan import PartitionPlan, RewriteOptions
from penstock.lake.rewrite.run import BulkRewrite, Exchange, RewriteReport
from penstock.stream.ports import PreparedObject
from penstock.stream.wal.wal_store import WalStores
from penstock.stream.wal.wal_store_url import open_for_reads

if TYPE_CHECKING:
    from penstock.lake.table.engines import Engine

_TIMEOUT_S = 30.0


# Invariant: a rejection because of changed sources is a conflict; any other rejection, or no
# response, is an error. Until the work starts, only modules needed to parse arguments are imported.
class ControllerRewrites:
    """Implements `lake.rewrite.run.RewriteMetadata` with the controller's gRPC API."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    async def prepare(self, count: int, ttl_ms: int) -> list[PreparedObject]:
        """Allocate ids for objects. Raises NoController, ExpectedError."""
        try:
            response = await self._client.prepare_rewrite(
                PrepareRewrite(count=count, ttl_ms=ttl_ms), timeout_s=_TIMEOUT_S
            )
        except TimeoutError as error:
            raise NoController(f"nothing was rewritten: {error}") from None
        except RequestRefused as error:
            raise ExpectedError(
                f"the controller rejected the preparation of objects: {error}"
            ) from None
        return [PreparedObject(item.object_id, item.key) for item in response.items]

    async def commit(
        self,
        stream_id: StreamId,
        exchanges: Sequence[Exchange],
        *,
        is_ordered: bool = False,
        tombstones_kept_ms: int | None = None,
    ) -> list[str]:
        """Commit exchanges and return a conflict or "" for each. is_ordered: whether to reject
        every exchange after a conflict. tombstones_kept_ms: as in `CommitObjects`. Raises
        NoController, ExpectedError.
        """
        request = CommitRewrite(
            stream_id=stream_id,
            items=[_item(exchange) for exchange in exchanges],
            is_ordered=is_ordered,
            tombstones_kept_ms=tombstones_kept_ms,
        )
        try:
            response = await self._client.commit_rewrite(request, timeout_s=_TIMEOUT_S)
        except TimeoutError as error:
            raise NoController(
                "it is unknown whether the last commit succeeded; it is safe to run the"
                f" command again: {error}"
            ) from None
        except StreamRefused as error:
            return [f"its topic was deleted: {error}"] * len(exchanges)
        except RequestRefused as error:
            raise ExpectedError(f"the controller rejected the commit: {error}") from None
        return [(item.detail or item.status.name) if item.status else "" for item in response.items]


class Target(NamedTuple):
    """The topic to rewrite and its cluster. cluster_id: empty if the store contains only one
    cluster. wal_store_url: empty if the WALs are in the main store.
    """

    store_url: str
    cluster_id: str
    topic: str
    wal_store_url: str = ""

    def open(self) -> WalStores:
        """Open the stores. Raises InvalidStoreUrl."""
        return open_for_reads(self.store_url, self.wal_store_url)

    def view(self, stores: WalStores) -> ClusterView:
        return ClusterView(stores.store, self.cluster_id, wal_store=stores.wal_store)


def plan_rewrite(target: Target, options: RewriteOptions) -> list[PartitionPlan]:
    """Return the plan of a rewrite. Does not change anything or contact controllers."""

    async def plan() -> list[PartitionPlan]:
        stores = target.open()
        try:
            rewrite = BulkRewrite(
                target.view(stores),
                target.topic,
                _PlanOnly(),
                _run_no_tasks,
                options,
                now_ms=wall_ms,
            )
            return await rewrite.plan()
        finally:
            await stores.close()

    return asyncio.run(plan())


def rewrite_topic(
    target: Target,
    controller: str,
    engine: "Engine",
    options: RewriteOptions,
    on_written: Callable[[int], None] = lambda _: None,
) -> RewriteReport:
    """Rewrite a topic. Raises NoController, ExpectedError, StreamError, ObjectStoreError."""

    async def run() -> RewriteReport:
        stores, client = target.open(), connect(controller)
        try:
            view, metadata = target.view(stores), ControllerRewrites(client)
            return await BulkRewrite(
                view,
                target.topic,
                metadata,
                run_tasks,
                options,
                now_ms=wall_ms,
                on_written=on_written,
            ).run()
        finally:
            await client.close()
            await stores.close()

    async def run_tasks(tasks: Sequence[RewriteTask]) -> list[RewriteResult]:
        return await asyncio.to_thread(
            lambda: list(engine.map(RewriteJob(target.store_url, target.wal_store_url), tasks))
        )

    return asyncio.run(run())


class _PlanOnly:
    """The metadata interface for plans, which do not commit anything."""

    async def prepare(self, count: int, ttl_ms: int) -> list[PreparedObject]:
        raise AssertionError("a plan prepares nothing")

    async def commit(self, stream_id: StreamId, exchanges: Sequence[Exchange]) -> list[str]:
        raise AssertionError("a plan commits nothing")


async def _run_no_tasks(tasks: Sequence[RewriteTask]) -> list[RewriteResult]:
    raise AssertionError(f"a plan cannot run tasks, but got {len(tasks)}")


def _item(exchange: Exchange) -> RewriteItem:
    new = exchange.new
    ranges = [
        RangeEntry(
            part.stream_id,
            part.start_offset,
            part.end_offset,
            part.record_count,
            part.size_bytes,
            part.max_timestamp_ms,
        )
        for part in new.ranges
    ]
    return RewriteItem(
        new=CommitObject(
            object_id=new.object_id,
            key=new.key,
            role=int(new.role),
            size_bytes=new.size_bytes,
            ranges=ranges,
        ),
        sources=[
            RewriteSource(
                key=source.key,
                start_offset=source.range.start_offset,
                end_offset=source.range.end_offset,
            )
            for source in exchange.sources
        ],
    )
