"""Numbers that JSON or floats cannot represent."""

import json
import math
from typing import Any, NoReturn, cast

import msgspec


def named(value: Any) -> Any:  # noqa: ANN401 - a value of JSON
    """Return the value with the strings NaN, Infinity and -Infinity for these numbers, as Java's
    Avro encoder and Protobuf's JSON mapping do; msgspec would write null.
    """
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: named(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        items: list[Any] = cast("Any", value)
        return [named(item) for item in items]
    return value


def parse_large(data: bytes) -> Any:  # noqa: ANN401 - a value of JSON
    """Parse JSON with numbers beyond the range of a float, which keep their text. Raise ValueError
    or RecursionError.
    """
    return json.loads(data.decode(), parse_float=_number, parse_constant=_refuse)


def _number(text: str) -> Any:  # noqa: ANN401 - a number
    number = float(text)
    return number if math.isfinite(number) else msgspec.Raw(text.encode())


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
