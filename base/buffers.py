"""Define bytes of any type that can be read without a copy."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
