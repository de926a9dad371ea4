"""Describe the bucket of a local cluster: its objects by type, and the requests made.

Invariant: nothing is changed. Roles are taken from the controller's metadata; other objects are WAL
slots that wait for deletion, or fences.
"""

import asyncio
import urllib.request
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.clients.metadata import read_metadata
from penstock.deploy.clients.state_file import ClusterState
from penstock.deploy.local.moto_store import COUNTS_PATH
from penstock.objectstore.config import S3Config
from penstock.objectstore.url import open_store, parse_store_url
from penstock.stream.ports import ObjectRole

_NAMES: Final = {
    ObjectRole.WAL: "WAL objects that the log refers to",
    ObjectRole.STREAM_SET: "stream-set objects (many partitions each)",
    ObjectRole.STREAM: "stream objects (one partition each)",
}
_OLD_WAL: Final = "WAL objects already uploaded (deleted after a minute), and fences"
_SNAPSHOTS: Final = "metadata snapshots"


@dataclass(frozen=True, slots=True)
class Share:
    """Objects of one type."""

    name: str
    objects: int
    size_bytes: int


def shares_of(state: ClusterState) -> list[Share]:
    """Return all objects in the bucket by type."""
    roles = read_metadata(state.controller, _roles)
    found: dict[str, list[int]] = {}
    for key, size_bytes in asyncio.run(_list(state.store_url)):
        name = roles.get(key) or (
            _OLD_WAL
            if key.startswith("wal/")
            else _SNAPSHOTS
            if key.startswith("meta/")
            else "other"
        )
        found.setdefault(name, []).append(size_bytes)
    return [Share(name, len(sizes), sum(sizes)) for name, sizes in sorted(found.items())]


def request_counts(state: ClusterState) -> dict[str, int]:
    """Return moto's counts of requests and bytes, by HTTP method."""
    store = parse_store_url(state.store_url)
    assert isinstance(store, S3Config)
    host = urlsplit(store.endpoint or "").netloc
    with urllib.request.urlopen(f"http://{host}{COUNTS_PATH}", timeout=60) as response:
        return msgspec.json.decode(response.read(), type=dict[str, int])


def _roles(image: MetadataImage) -> dict[str, str]:
    return {
        stored.key: _NAMES.get(ObjectRole(stored.role), "other")
        for stored in image.objects
        if stored.refs
    }


async def _list(store_url: str) -> list[tuple[str, int]]:
    store = open_store(store_url)
    try:
        return [(info.key, info.size_bytes) async for info in store.list("")]
    finally:
        await store.close()
