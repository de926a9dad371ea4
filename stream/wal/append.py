"""What one call of `Storage.append` puts into the WAL: entries that share a slot, and who is told
when it is durable.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from stream.cache.log_cache import AppendEntry

AppendDone: TypeAlias = Callable[[Exception | None], None]
"""None: durable. Called once, on the loop."""

WalAppend: TypeAlias = tuple[Sequence[AppendEntry], AppendDone]
