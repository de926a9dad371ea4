"""The unit that `Storage.append` adds to the WAL: entries that share a slot, and a callback."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from penstock.stream.cache.log_cache import AppendEntry

AppendDone: TypeAlias = Callable[[Exception | None], None]
"""Called once, on the loop: with None when the entries are durable, otherwise with the error."""

WalAppend: TypeAlias = tuple[Sequence[AppendEntry], AppendDone]
