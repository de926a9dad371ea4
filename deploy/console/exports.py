"""Read the state of table exports from the statuses of table runners in the store."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import StreamError
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.deploy.console.bucket import need_store
from penstock.deploy.errors import UsageError
from penstock.lake.manifest.table_status import (
    ExportView,
    declares_table,
    exports_of,
    read_statuses,
)
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.url import open_store

_READ_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Exports:
    """The exports of topics. problem: the reason why their states are unknown, in which case there
    are none.
    """

    topics: list[ExportView]
    problem: str = ""


def enabled_in(image: MetadataImage, sees: Callable[[str], bool]) -> dict[str, str]:
    """Return the ids of topics that declare a table, by name."""
    return {
        topic.name: str(topic.topic_id)
        for topic in image.topics
        if sees(topic.name)
        and declares_table(
            topic.name,
            image.configs.topic(topic.name),
            is_internal=topic.name in INTERNAL_TOPICS,
        )
    }


async def read_exports(image: MetadataImage, url: str, enabled: dict[str, str]) -> Exports:
    """Read the statuses. The store is not accessed if no topic is enabled."""
    if not enabled:
        return Exports([])
    try:
        store = open_store(need_store(url))
        try:
            async with asyncio.timeout(_READ_S):
                statuses = await read_statuses(store, image.cluster_id)
        finally:
            await store.close()
    except TimeoutError:
        return Exports([], f"the object store did not respond for {_READ_S:.0f} s")
    except (UsageError, ObjectStoreError, StreamError, OSError) as error:
        return Exports([], str(error))
    return Exports(exports_of(enabled, statuses, time.time_ns() // 1_000_000))
