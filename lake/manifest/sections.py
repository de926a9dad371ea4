"""Read parts of manifest objects: a root with one GET of the object's tail, and neighboring
sections with one GET.
"""

import asyncio
from collections.abc import Callable, Sequence

from penstock.base.buffers import Buffer
from penstock.objectstore.errors import RangeNotSatisfiable
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.keys import manifest_key
from penstock.stream.format.manifest import codec
from penstock.stream.format.manifest.model import ManifestRoot, SectionRef

TAIL_BYTES = 64 << 10
"""Size of the first read, enough for the root of about 1,000 topics."""

GET_BYTES_MAX = 4 << 20
GAP_BYTES_MAX = 128 << 10
"""Reading this many unneeded bytes costs less than another GET."""

GETS_IN_FLIGHT_MAX = 16


async def load_root(store: ObjectStore, cluster_id: str, version: int) -> ManifestRoot:
    """Read and check the root of a version. Raise ObjectNotFound, ObjectCorrupt or
    ObjectStoreError.
    """
    key = manifest_key(cluster_id, version)
    tail = await store.get_tail(key, TAIL_BYTES)
    footer = codec.parse_footer(tail.data, tail.size_bytes, key)
    ref = footer.root
    if ref.version != version:
        raise ObjectCorrupt(key, tail.size_bytes, f"holds version {ref.version}")
    begins = tail.size_bytes - len(tail.data)
    if ref.position >= begins:
        stored = memoryview(tail.data)[ref.position - begins :][: ref.stored_bytes]
    else:
        stored = memoryview(await _get(store, key, ref.position, ref.stored_bytes))
    root = codec.decode_root(codec.unpack_section(stored, ref, key), footer, key)
    if root.cluster_id != cluster_id:
        raise ObjectCorrupt(key, ref.position, f"belongs to cluster {root.cluster_id!r}")
    return root


# Invariant: every section is validated against its reference. `ObjectNotFound` means that the
# version was deleted after its grace period, so the reader's manifest is outdated. Limits:
# `GETS_IN_FLIGHT_MAX` x `GET_BYTES_MAX` in flight, or one section if that is larger.
class SectionReader:
    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._gets = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)

    async def read(
        self, refs: Sequence[SectionRef], take: Callable[[SectionRef, memoryview, str], None]
    ) -> None:
        """Read sections and call `take` for each one, in any order but one at a time.

        `take` receives the reference, the raw bytes, and the key of the object.
        """
        groups = _groups(sorted(set(refs)))
        reads = [asyncio.ensure_future(self._read(group)) for group in groups]
        try:
            for group, read in zip(groups, reads, strict=True):
                data, key = await read
                for ref in group:
                    at = ref.position - group[0].position
                    take(ref, codec.unpack_section(data[at : at + ref.stored_bytes], ref, key), key)
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    async def _read(self, group: Sequence[SectionRef]) -> tuple[memoryview, str]:
        key = manifest_key(self._cluster_id, group[0].version)
        start, end = group[0].position, group[-1].position + group[-1].stored_bytes
        if start < 0 or not 0 < end - start <= GET_BYTES_MAX + codec.SECTION_BYTES_MAX:
            raise ObjectCorrupt(key, start, f"a section of {group[-1].stored_bytes} bytes")
        async with self._gets:
            return memoryview(await _get(self._store, key, start, end - start)), key


async def _get(store: ObjectStore, key: str, start: int, length: int) -> Buffer:
    try:
        data = await store.get_range(key, start, length)
    except RangeNotSatisfiable:
        raise ObjectCorrupt(key, start, "the object is shorter than in a reference to it") from None
    if len(data) != length:
        raise ObjectCorrupt(key, start, f"got {len(data)} bytes instead of {length}")
    return data


def _groups(refs: Sequence[SectionRef]) -> list[list[SectionRef]]:
    """Group neighboring sections of one object, so that each group costs one GET.

    `refs` are sorted by version and position.
    """
    groups: list[list[SectionRef]] = []
    for ref in refs:
        if groups:
            first, last = groups[-1][0], groups[-1][-1]
            end = last.position + last.stored_bytes
            near = ref.version == first.version and ref.position - end <= GAP_BYTES_MAX
            if near and ref.position + ref.stored_bytes - first.position <= GET_BYTES_MAX:
                groups[-1].append(ref)
                continue
        groups.append([ref])
    return groups
