"""The modules of pyarrow that `lake.arrow.pyarrow_untyped` does not have. They are not typed, so
type checkers see Any.

Must not contain anything else.
"""

from typing import Any, TypeAlias

import pyarrow.fs as _fs  # type: ignore[import-untyped]
import pyarrow.parquet as _parquet  # type: ignore[import-untyped]

pq: Any = _parquet
fs: Any = _fs

Footer: TypeAlias = Any
