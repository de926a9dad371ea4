"""Define the header that metadata snapshots and objects of the metadata log share. Bytes only.

Invariants: the CRC covers magic, version and contents, so nothing but a whole object of a version
that this software knows is opened. A sound object of a newer version raises FormatUnknown: it is
not damaged, and nothing may take its place.
Must not do I/O. **Stored: header and CRC stay as they are in every version.**

Header, 16 bytes, big endian: magic (8 bytes), version u32, CRC32C u32 of magic, version and what
follows the header.
"""

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.stream.errors import FormatUnknown

_HEADER = Struct(">8sII")
_CRC_AT = 12


class Unusable(Exception):
    """Bytes that are not such an object; the text says why."""


class MetadataFormat(NamedTuple):
    magic: bytes
    version: int

    def pack(self, payload: bytes) -> list[bytes]:
        """Return the object in parts. The payload is not copied."""
        crc = crc32c(payload, crc32c(_HEADER.pack(*self, 0)[:_CRC_AT]))
        return [_HEADER.pack(*self, crc), payload]

    def unpack(self, key: str, data: bytes) -> memoryview:
        """Return the payload. Raises Unusable, FormatUnknown."""
        if len(data) < _HEADER.size:
            raise Unusable(f"{len(data)} bytes are less than its header")
        magic, version, crc = _HEADER.unpack_from(data)
        if magic != self.magic:
            raise Unusable(f"it begins with {magic!r}, not {self.magic!r}")
        payload = memoryview(data)[_HEADER.size :]
        if crc32c(payload, crc32c(data[:_CRC_AT])) != crc:
            raise Unusable("it does not match its checksum")
        if version != self.version:
            raise FormatUnknown(key, f"format version {version}")
        return payload
