"""Provide configs for forms: name, unit, default and description of each.

Invariant: pure.
"""

from dataclasses import dataclass
from typing import Final

from penstock.deploy.clients.configs import ConfigView

_UNITS: Final = {
    "ms": "milliseconds",
    "bytes": "bytes",
    "seconds": "seconds",
    "minutes": "minutes",
    "hours": "hours",
    "rate": "per second",
}
"""Units by the last word of a name."""
_EXAMPLES: Final = {"ms": ", or as in 7d", "bytes": ", or as in 1GiB"}
"""Alternative notations of a value, displayed after the number, by the last word of a name."""
_NUMBERS: Final = frozenset({"int", "short", "long", "double"})


@dataclass(frozen=True, slots=True)
class ConfigChoice:
    """value, default: empty if there is none. unit: the unit, or the type if there is no unit."""

    name: str
    value: str
    default: str
    unit: str
    doc: str


def choice_of(config: ConfigView) -> ConfigChoice:
    unit = unit_of(config) + _EXAMPLES.get(config.name.rpartition(".")[2], "")
    return ConfigChoice(config.name, config.value, config.default, unit, config.doc)


def unit_of(config: ConfigView) -> str:
    """Return the unit of a config."""
    if config.kind in _NUMBERS:
        words = config.name.replace("_", ".").split(".")
        return next((_UNITS[word] for word in reversed(words) if word in _UNITS), "number")
    return {"boolean": "true or false", "list": "list, separated by commas"}.get(
        config.kind, "text"
    )
