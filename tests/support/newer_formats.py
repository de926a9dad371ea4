"""Objects and manifests as later versions of Penstock might write them: with other versions,
features or sizes, and with valid checksums.
"""

from crc32c import crc32c

from penstock.stream.format.layout import FOOTER_BYTES, FOOTER_CRC_AT, HEADER_BYTES, HEADER_CRC_AT
from penstock.stream.format.manifest import codec

VERSION_AT, REQUIRED_AT, OPTIONAL_AT = 8, 44, 48
"""Positions in the header of an object."""

MANIFEST_REQUIRED_AT, MANIFEST_OPTIONAL_AT, MANIFEST_VERSION_AT = 36, 40, 44
"""Positions in the footer of a manifest."""

METADATA_VERSION_AT, METADATA_HEADER_BYTES = 8, 16
"""The header of metadata snapshots and metadata log objects."""


def with_header_field(data: bytes, at: int, field: bytes) -> bytes:
    """Return the object or fence with this field changed in its header and in the copy of the
    header.
    """
    header = bytearray(data[:HEADER_BYTES])
    header[at : at + len(field)] = field
    header[HEADER_CRC_AT:] = _sealed(header[:HEADER_CRC_AT])
    if len(data) == HEADER_BYTES:
        return bytes(header)
    footer = bytearray(data[-FOOTER_BYTES:])
    index_at = int.from_bytes(footer[:8], "big")
    index = bytes(header) + data[index_at + HEADER_BYTES : -FOOTER_BYTES]
    footer[16:20] = _sealed(index)
    footer[FOOTER_CRC_AT : FOOTER_CRC_AT + 4] = _sealed(footer[:FOOTER_CRC_AT])
    return bytes(header) + data[HEADER_BYTES:index_at] + index + bytes(footer)


def with_footer_field(data: bytes, at: int, field: bytes) -> bytes:
    """Return the manifest with this field changed in its footer."""
    footer = bytearray(data[-codec.FOOTER.size :])
    footer[at : at + len(field)] = field
    footer[codec.FOOTER_CRC_AT : codec.FOOTER_CRC_AT + 4] = _sealed(footer[: codec.FOOTER_CRC_AT])
    return data[: -codec.FOOTER.size] + bytes(footer)


def with_metadata_version(data: bytes, version: int) -> bytes:
    """Return the metadata snapshot or metadata log object with this version."""
    head = data[:METADATA_VERSION_AT] + version.to_bytes(4, "big")
    return head + _sealed(head + data[METADATA_HEADER_BYTES:]) + data[METADATA_HEADER_BYTES:]


def _sealed(data: bytes | bytearray) -> bytes:
    return crc32c(bytes(data)).to_bytes(4, "big")
