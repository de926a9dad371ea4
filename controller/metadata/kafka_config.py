"""A group or broker config as defined by Kafka's `ConfigDef`, with Kafka's error messages."""

import re
from dataclasses import dataclass
from typing import Final

from penstock.controller.metadata.topic_configs import (
    INT32_MAX,
    INT64_MAX,
    VALUE_CHARS_MAX,
    ConfigType,
)

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""The pattern is unambiguous, so that backtracking is cheap: if a number could match in two ways,
4,096 digits would take 0.4 s of CPU time.
"""
_LIMITS: Final = {ConfigType.INT: INT32_MAX, ConfigType.LONG: INT64_MAX}


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """A config and its allowed values. low, high: inclusive limits of numbers. choices: allowed
    strings; empty if all are allowed. pattern: regular expression that replaces the choices;
    `wanted` describes it.
    """

    name: str
    type: ConfigType
    default: str
    doc: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    wanted: str = ""

    def problem(self, value: str) -> str:
        """Return Kafka's error message if the value is invalid, or "" if it is valid."""
        if len(value) > VALUE_CHARS_MAX:
            return f"config {self.name}: the value has more than {VALUE_CHARS_MAX} characters"
        found = self._problem(value.strip())
        return f"Invalid value {value} for configuration {self.name}: {found}" if found else ""

    def canonical(self, value: str) -> str:
        """Return the stored form of a valid value, without surrounding spaces."""
        return value.strip()

    def _problem(self, value: str) -> str:
        match self.type:
            case ConfigType.INT | ConfigType.LONG:
                return self._problem_of_integer(value)
            case ConfigType.DOUBLE:
                if _DECIMAL.fullmatch(value) is None:
                    return "Not a number of type DOUBLE"
                return self._problem_of_size(float(value))
            case ConfigType.BOOLEAN:
                is_known = value.lower() in {"true", "false"}
                return "" if is_known else "Expected value to be either true or false"
            case _:
                return self._problem_of_text(value)

    def _problem_of_integer(self, value: str) -> str:
        limit = _LIMITS[self.type]
        if _INTEGER.fullmatch(value) is None or not -limit - 1 <= int(value) <= limit:
            return f"Not a number of type {self.type.name}"
        return self._problem_of_size(int(value))

    def _problem_of_size(self, number: float) -> str:
        if self.low is not None and number < self.low:
            return f"Value must be at least {self.low}"
        if self.high is not None and number > self.high:
            return f"Value must be no more than {self.high}"
        return ""

    def _problem_of_text(self, value: str) -> str:
        if not self.choices or value in self.choices:
            return ""
        if not self.pattern:
            return f"String must be one of: {', '.join(self.choices)}"
        if re.fullmatch(self.pattern, value):
            return ""
        return f"Invalid value `{value}` for configuration {self.name}. {self.wanted}"
