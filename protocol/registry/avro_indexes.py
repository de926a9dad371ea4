"""Reject Avro values with negative indexes, which fastavro counts from the end of unions and
enums.
"""

from typing import Any, cast


class _Choices(list[Any]):
    """The types of a union, or the symbols of an enum. Negative indexes are errors."""

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as in list
        if index < 0:
            raise IndexError(f"a union or enum has a negative index, {index}: the value is corrupt")
        return super().__getitem__(index)

    def __len__(self) -> int:
        """Return 0, because fastavro's compiled code adds the length to negative indexes."""
        return 0

    def __bool__(self) -> bool:
        return True


def refuse_negative_indexes(parsed: Any) -> Any:  # noqa: ANN401 - of fastavro
    """Return the parsed type, which is changed in place, so that fastavro raises IndexError for a
    negative index of a union or an enum. On its own, it counts negative indexes from the end.
    """
    if isinstance(parsed, list):
        return _Choices(map(refuse_negative_indexes, cast("Any", parsed)))
    if isinstance(parsed, dict):
        kind = cast("dict[str, Any]", parsed)
        for part in {"type", "items", "values"} & kind.keys():
            kind[part] = refuse_negative_indexes(kind[part])
        if "symbols" in kind:
            kind["symbols"] = _Choices(kind["symbols"])
        for field in kind.get("fields", ()):
            refuse_negative_indexes(field)
    return cast("Any", parsed)
