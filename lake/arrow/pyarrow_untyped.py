"""The only module that imports pyarrow. It has no type information, so its objects have these names
and type checkers see Any.

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
