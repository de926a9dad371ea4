"""The type of bytes that can be read without a copy."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
