"""Compare block-by-block lz4 decompression with cramjam's frame decoder."""

from random import Random

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.batch.compression import Compression, Inflater
from penstock.protocol.batch.errors import BatchCorrupt, BatchTooLarge

_HEADERS = (
    bytes.fromhex("04224d18604082"),
    bytes.fromhex("04224d186050fb"),
    bytes.fromhex("04224d186040ff"),  # wrong header checksum
    bytes.fromhex("04224d18404016"),  # linked blocks
)
_BLOCK_BYTES = 64 << 10
_LIMIT = 3 * _BLOCK_BYTES
_SIZES = (0, 1, 100, _BLOCK_BYTES - 1, _BLOCK_BYTES, _BLOCK_BYTES + 1)


def _block(size_bytes: int, kind: str, seed: int) -> bytes:
    plain = Random(seed).randbytes(size_bytes) if kind == "random" else bytes(size_bytes)
    if kind == "stored":
        return (len(plain) | 1 << 31).to_bytes(4, "little") + plain
    packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
    return len(packed).to_bytes(4, "little") + packed


_blocks = st.builds(
    _block,
    st.sampled_from(_SIZES),
    st.sampled_from(["random", "zeros", "stored"]),
    st.integers(0, 3),
)


@st.composite
def _frames(draw: st.DrawFn) -> bytes:
    blocks = draw(st.lists(_blocks, max_size=4))
    end = draw(st.sampled_from([bytes(4), bytes(4), b"", bytes(8)]))
    frame = bytearray(draw(st.sampled_from(_HEADERS)) + b"".join(blocks) + end)
    for _ in range(draw(st.integers(0, 2))):
        frame[draw(st.integers(0, len(frame) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(frame[: draw(st.sampled_from([len(frame), len(frame), len(frame) // 2]))])


def _whole(frame: bytes) -> bytes | str:
    output = bytearray(_LIMIT)
    try:
        return bytes(output[: cramjam.lz4.decompress_into(frame, output)])
    except cramjam.DecompressionError as error:
        return "too large" if str(error) == "failed to write whole buffer" else "corrupt"


@settings(max_examples=300, deadline=None)
@given(_frames(), st.integers(0, 10), st.sampled_from([0, 1, _BLOCK_BYTES, 10 * _BLOCK_BYTES]))
def test_both_decoders_agree(frame: bytes, used: int, plain_bytes: int) -> None:
    inflater = Inflater(_LIMIT)
    inflater.reserve(used)
    inflater.output[:used] = b"x" * used
    found: bytes | str
    try:
        end = inflater.append(Compression.LZ4, frame, used, plain_bytes)
        found = bytes(inflater.output[used:end])
    except BatchTooLarge:
        found = "too large"
    except BatchCorrupt:
        found = "corrupt"
    assert found == _whole(frame)
    assert bytes(inflater.output[:used]) == b"x" * used


@pytest.mark.parametrize("header", _HEADERS[:2])
def test_full_blocks_are_decoded_without_the_frame_decoder(
    header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame decoder copies the blocks first, which takes up to 1.6 times the CPU."""
    size_bytes = _BLOCK_BYTES if header == _HEADERS[0] else 4 * _BLOCK_BYTES
    blocks = [_block(size_bytes, "zeros", 0), _block(100, "stored", 0)]
    monkeypatch.setattr("penstock.protocol.batch.compression._DECOMPRESS_INTO", dict[int, object]())
    inflater = Inflater()
    end = inflater.append(Compression.LZ4, header + b"".join(blocks) + bytes(4), 0)
    assert bytes(inflater.output[:end]) == bytes(size_bytes + 100)


def test_many_small_blocks_are_decoded_by_the_frame_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each block takes a microsecond in Python, and one request may contain 200,000 of them."""
    calls = list[bytes]()

    def decompress_block_into(block: bytes, output: memoryview, output_len: int) -> int:
        calls.append(block)
        return one(block, output, output_len=output_len)

    one = cramjam.lz4.decompress_block_into
    monkeypatch.setattr(cramjam.lz4, "decompress_block_into", decompress_block_into)
    blocks = b"".join(_block(1, "zeros", 0) for _ in range(1_000))
    inflater = Inflater()
    end = inflater.append(Compression.LZ4, _HEADERS[0] + blocks + bytes(4), 0)
    assert bytes(inflater.output[:end]) == bytes(1_000)
    assert len(calls) == 1
