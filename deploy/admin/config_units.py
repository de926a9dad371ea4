"""Convert values with units, such as `7d`, to the numbers of Kafka's configs."""

from typing import Final

from penstock.base.settings import Kind, Setting, SettingInvalid, parse, without_unit
from penstock.deploy.errors import UsageError

_KINDS: Final = {"ms": Kind.DURATION, "bytes": Kind.BYTES}
"""Setting types by the last word of a name."""


def number_of(name: str, text: str) -> str:
    """Return the value without its unit: in milliseconds or bytes if the name ends with `.ms` or
    `.bytes`; other values are returned unchanged. Raises UsageError with the allowed units.
    """
    kind = _KINDS.get(name.rpartition(".")[2])
    if kind is not None and text:
        try:
            parse(Setting(name, kind), text)
        except SettingInvalid as error:
            raise UsageError(str(error)) from None
    return without_unit(name, text)
