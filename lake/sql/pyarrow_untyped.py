"""The modules of pyarrow that `lake.arrow.pyarrow_untyped` does not have. They are not typed, so
type checkers see Any.

Must not contain anything else.
"""

from typing import Any, TypeAlias

import pyarrow.dataset as _dataset  # type: ignore[import-untyped]
import pyarrow.fs as _fs  # type: ignore[import-untyped]

ds: Any = _dataset
fs: Any = _fs

Expression: TypeAlias = Any
