"""Fuzz the decoders that turn record batches into Arrow: the compiled one, whose memory accesses
are unchecked, and the NumPy one. They must return the same rows or both reject the input.
"""

from typing import Any, Final

from penstock.lake.fetch.errors import ReadError
from tests.fuzz import seals
from tests.support.reader_objects import decode

LIMITS: Final[tuple[dict[str, int], ...]] = (
    {},
    {"rows_max": 1},
    {"rows_max": 3, "batch_bytes_max": 100},
    {"batch_bytes_max": 1_000},
)
"""The first byte of an input selects one."""

_UNCOMPRESSED_BYTES_MAX: Final = 1 << 20


def read(data: bytes) -> None:
    """Decode a block of record batches in three ways."""
    if not data:
        return
    limits = LIMITS[data[0] % len(LIMITS)] | {
        "uncompressed_batch_bytes_max": _UNCOMPRESSED_BYTES_MAX
    }
    expected = _decoded(data[1:], compiled=False, **limits)
    for views in (False, True):
        found = _decoded(data[1:], compiled=True, views=views, **limits)
        assert type(found) is type(expected), f"views {views}: {found!r}, numpy: {expected!r}"
        if not isinstance(expected, ReadError):
            table = found.cast(expected.schema) if views else found
            assert table.equals(expected), f"views {views}: the rows differ from those of numpy"


def seal(data: bytes) -> bytes:
    """Return the input with a correct length and CRC in its first batch."""
    return data[:1] + seals.batch(data[1:])


def _decoded(block: bytes, **options: Any) -> Any:
    try:
        return decode(block, **options)
    except ReadError as error:
        return error
