"""The one place where pyarrow is imported: it has no type information, so its objects go by these
names and are Any to the checkers.

Must not contain anything else.
"""

from typing import Any, TypeAlias

import pyarrow as _pyarrow  # type: ignore[import-untyped]
import pyarrow.compute as _compute  # type: ignore[import-untyped]

pa: Any = _pyarrow
pc: Any = _compute

Array: TypeAlias = Any
Schema: TypeAlias = Any
RecordBatch: TypeAlias = Any
RecordBatchReader: TypeAlias = Any
Table: TypeAlias = Any
DataType: TypeAlias = Any
Buffer: TypeAlias = Any
