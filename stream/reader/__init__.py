"""Read partitions as Arrow columns straight from the store, without a broker. Needs the extra `reader` (pyarrow; numba for speed).

Importing this package imports neither: `slices` and `errors` serve planners and drivers too. `scan` is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream.reader.topic_scan import Scan as Scan
    from stream.reader.topic_scan import scan as scan

__all__ = ["Scan", "scan"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what a module's attributes are
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stream.reader import topic_scan

    return getattr(topic_scan, name)
