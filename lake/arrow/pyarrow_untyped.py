"""The only module that imports pyarrow. pyarrow has no type information, so type checkers treat the
objects with these names as Any.

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
