"""The common header of metadata snapshots and metadata log objects. **Stored: the header must never
change between versions.**

Header, 16 bytes, big endian: magic (8 bytes), version u32, CRC32C u32 of the magic, the version and
the payload.
"""

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.stream.errors import FormatUnknown

_HEADER = Struct(">8sII")
_CRC_AT = 12


class Unusable(Exception):
    """Raised for bytes that are not a valid backup object. The message contains the reason."""


class MetadataFormat(NamedTuple):
    magic: bytes
    version: int

    def pack(self, payload: bytes) -> list[bytes]:
        """Return the parts of the object. The payload is not copied."""
        crc = crc32c(payload, crc32c(_HEADER.pack(*self, 0)[:_CRC_AT]))
        return [_HEADER.pack(*self, crc), payload]

    def unpack(self, key: str, data: bytes) -> memoryview:
        """Return the payload. Raises Unusable, and FormatUnknown for an intact object with a newer
        version.
        """
        if len(data) < _HEADER.size:
            raise Unusable(f"{len(data)} bytes are less than the size of its header")
        magic, version, crc = _HEADER.unpack_from(data)
        if magic != self.magic:
            raise Unusable(f"it begins with {magic!r}, not {self.magic!r}")
        payload = memoryview(data)[_HEADER.size :]
        if crc32c(payload, crc32c(data[:_CRC_AT])) != crc:
            raise Unusable("it does not match its checksum")
        if version != self.version:
            raise FormatUnknown(key, f"format version {version}")
        return payload
