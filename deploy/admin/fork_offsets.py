"""Read the offsets at which a topic is to be forked, in the format of `kafka-delete-records`."""

import sys
from pathlib import Path

import msgspec

from penstock.deploy.errors import UsageError
from penstock.protocol.primitives import MAX_STRING_BYTES


class _Offset(msgspec.Struct):
    topic: str
    partition: int
    offset: int


class _File(msgspec.Struct):
    partitions: list[_Offset]


def read_offsets(path: str, topic: str) -> str:
    """Return the offsets of the topic as the value of `penstock.fork.offsets`. path: "-" for
    standard input. Raises UsageError.
    """
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        found = msgspec.json.decode(text, type=_File)
    except OSError as error:
        raise UsageError(f"--at-offsets {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"--at-offsets {path}: {error};"
            ' expected {"partitions": [{"topic": "orders", "partition": 0, "offset": 1}]}'
        ) from None
    if not found.partitions:
        raise UsageError(f"--at-offsets {path}: the file has no offsets")
    for item in found.partitions:
        if item.topic != topic:
            raise UsageError(f"--at-offsets {path}: {item.topic!r} is not {topic!r}")
    offsets = ",".join(f"{item.partition}:{item.offset}" for item in found.partitions)
    if len(offsets) > MAX_STRING_BYTES:
        raise UsageError(
            f"--at-offsets {path}: the offsets take {len(offsets):,} bytes, and"
            f" {MAX_STRING_BYTES:,} are allowed: omit partitions that are forked at their end"
        )
    return offsets
