"""Decompression bombs of each codec allocate at most twice the limit and raise BatchCorrupt."""

import tracemalloc

import cramjam
import pytest

from penstock.protocol.batch.compression import Compression, compress, decompress
from penstock.protocol.batch.errors import BatchCorrupt

CAP_BYTES = 4 << 20
BOMB_BYTES = 64 << 20


def xerial_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    framed = len(block).to_bytes(4, "big") + block
    return b"\x82SNAPPY\x00" + bytes.fromhex("00000001 00000001") + framed * (BOMB_BYTES >> 20)


@pytest.mark.parametrize("name", ["gzip", "snappy", "xerial", "lz4", "zstd"])
def test_decompression_bombs_allocate_at_most_twice_the_limit(name: str) -> None:
    codec = Compression.SNAPPY if name == "xerial" else Compression[name.upper()]
    bomb = xerial_bomb() if name == "xerial" else compress(codec, bytes(BOMB_BYTES))
    tracemalloc.start()
    try:
        with pytest.raises(BatchCorrupt):
            decompress(codec, bomb, CAP_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= 2 * CAP_BYTES, f"{peak_bytes} bytes for a cap of {CAP_BYTES}"
