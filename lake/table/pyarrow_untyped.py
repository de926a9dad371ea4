"""Parts of pyarrow beside `lake.arrow.pyarrow_untyped`: untyped, so Any to the checkers. Must not
contain anything else.
"""

from typing import Any, TypeAlias

import pyarrow.compute as _compute  # type: ignore[import-untyped]
import pyarrow.parquet as _parquet  # type: ignore[import-untyped]

pc: Any = _compute
pq: Any = _parquet

Table: TypeAlias = Any
Footer: TypeAlias = Any
