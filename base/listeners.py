"""Parse listeners, `[NAME://]host:port`, and expand templates that allow several processes to share
a configuration. Pure.

advertised.listeners = PLAINTEXT://{pod}.brokers:9092, EXTERNAL://{host}:{ordinal+31000}
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeVar

from penstock.base.settings import SettingInvalid

PLAINTEXT: Final = "PLAINTEXT"
TEMPLATES: Final = ("host", "port", "id", "pod", "ordinal")
"""Template names: the address of this machine on the route to the controller; the bound port;
`node.id`; the host name; the number at the end of the host name.
"""

_TEMPLATE: Final = re.compile(r"\{([a-z]+)(?:\+([0-9]{1,5}))?\}")
_LISTENER: Final = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9_]*)://)?(\[[0-9a-fA-F:.]+\]|[^\s\[\]/:,]*):([0-9]{1,5})"
)
_ORDINAL: Final = re.compile(r"([0-9]+)\Z")
_Value = TypeVar("_Value")
LISTENER_PREFIX: Final = "listener.name."
"""Prefix of listener settings."""
_OF_LISTENER: Final = re.compile(r"listener\.name\.([a-z][a-z0-9_]*)\.(.+)")


class SecurityProtocol(StrEnum):
    """How connections to a listener are encrypted and authenticated, as in Kafka."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        return self.startswith("SASL")


class Listener(NamedTuple):
    """A listener. name: in uppercase. port: 0 for any free port."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address, which may be in brackets. False for
    every host name except localhost, because names are not resolved.
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_listeners(setting: str, texts: Sequence[str]) -> tuple[Listener, ...]:
    """Parse listeners. Raises SettingInvalid with the invalid listener."""
    found: list[Listener] = []
    for text in texts:
        listener = _parse(setting, text)
        if any(listener.name == other.name for other in found):
            raise SettingInvalid(
                setting,
                text,
                f"listener names must be unique; {listener.name} is used twice",
            )
        found.append(listener)
    return tuple(found)


def _parse(setting: str, text: str) -> Listener:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[3]) > 65_535:
        raise SettingInvalid(
            setting,
            text,
            "[NAME://]host:port with a port from 0 to 65535, as in PLAINTEXT://0.0.0.0:9092",
        )
    return Listener((match[1] or PLAINTEXT).upper(), match[2].strip("[]"), int(match[3]))


def expand(setting: str, text: str, values: Mapping[str, str | int]) -> str:
    """Replace templates that have a value and keep the others. Raises SettingInvalid for unknown
    names.
    """

    def filled(match: re.Match[str]) -> str:
        name, plus = match[1], match[2]
        if name not in TEMPLATES:
            raise SettingInvalid(
                setting,
                text,
                f"templates are {', '.join('{' + name + '}' for name in TEMPLATES)}, or with a"
                " number added",
            )
        if name not in values:
            return match[0]
        value = values[name]
        if plus is None:
            return str(value)
        if not isinstance(value, int):
            raise SettingInvalid(
                setting, text, "numbers can be added to {id}, {ordinal} and {port}"
            )
        return str(value + int(plus))

    return _TEMPLATE.sub(filled, text)


def pod_values(hostname: str) -> dict[str, str | int]:
    """Return the values of `{pod}` and `{ordinal}`: the ordinal of penstock-broker-2 is 2; a name
    that does not end with a number has no ordinal.
    """
    number = _ORDINAL.search(hostname)
    return {"pod": hostname} if number is None else {"pod": hostname, "ordinal": int(number[1])}


class ListenerKey(NamedTuple):
    """The name of a listener setting. listener: in lowercase. setting: its general name."""

    listener: str
    setting: str

    def __str__(self) -> str:
        return f"{LISTENER_PREFIX}{self.listener}.{self.setting}"


def split_key(name: str) -> ListenerKey | None:
    """Split `listener.name.NAME.SETTING`. Returns None if the name has a different form."""
    found = _OF_LISTENER.fullmatch(name)
    return None if found is None else ListenerKey(found[1], found[2])


def own_values(values: Iterable[tuple[str, _Value]], listener: str) -> dict[str, _Value]:
    """Return the settings of one listener, by their general names.

    values: names and values of all listener settings.
    """
    prefix = f"{LISTENER_PREFIX}{listener.lower()}."
    return {name.removeprefix(prefix): value for name, value in values if name.startswith(prefix)}


def check_known(values: Iterable[tuple[str, object]], listeners: Iterable[str]) -> None:
    """Check that listener settings refer to these listeners. Raises SettingInvalid."""
    known = [listener.lower() for listener in listeners]
    for name, value in values:
        key = split_key(name)
        if key is None or key.listener not in known:
            raise SettingInvalid(
                name,
                value,
                f"there is no such listener; existing listeners: {', '.join(known)}: write one of"
                " them into the"
                " name of the setting, in small letters, or add the listener to listeners",
            )


def uses(texts: Sequence[str], name: str) -> bool:
    """Return whether any of the texts contains the template."""
    return any(match[1] == name for text in texts for match in _TEMPLATE.finditer(text))
