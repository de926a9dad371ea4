"""Listeners: `[NAME://]host:port`, and the templates that let one text serve many processes.

    advertised.listeners = PLAINTEXT://{pod}.brokers:9092, EXTERNAL://{host}:{ordinal+31000}

Invariant: pure; what a name stands for is given. Every listener speaks Kafka's protocol in the
clear: a name that promises more is refused.
Source: Kafka's EndPoint and `advertised.listeners`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from base.settings import SettingInvalid

PLAINTEXT: Final = "PLAINTEXT"
TEMPLATES: Final = ("host", "port", "id", "pod", "ordinal")
"""This machine's address on the way to the controller; the port that was bound; `node.id`; the host
name; its last number.
"""

_TEMPLATE: Final = re.compile(r"\{([a-z]+)(?:\+([0-9]{1,5}))?\}")
_LISTENER: Final = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9_]*)://)?(\[[0-9a-fA-F:.]+\]|[^\s\[\]/:,]*):([0-9]{1,5})"
)
_ORDINAL: Final = re.compile(r"([0-9]+)\Z")


class Listener(NamedTuple):
    """name: in capitals. port: 0 is any free one."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listeners(setting: str, texts: Sequence[str]) -> tuple[Listener, ...]:
    """Raises SettingInvalid, which says what is wrong with which."""
    found: list[Listener] = []
    for text in texts:
        listener = _parse(setting, text)
        if any(listener.name == other.name for other in found):
            raise SettingInvalid(
                setting,
                text,
                f"each listener has a name of its own; {listener.name} is there twice",
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
    name = (match[1] or PLAINTEXT).upper()
    if name.startswith(("SASL", "SSL")):
        raise SettingInvalid(
            setting,
            text,
            f"listeners speak plaintext; give it another name than {name}, and TLS to a proxy"
            " before it",
        )
    return Listener(name, match[2].strip("[]"), int(match[3]))


def expand(setting: str, text: str, values: Mapping[str, str | int]) -> str:
    """Templates whose values are given are filled in, others stay. Raises SettingInvalid for names
    that no template has.
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
    """What `{pod}` and `{ordinal}` stand for: penstock-broker-2 has the ordinal 2; a name without a
    number has none.
    """
    number = _ORDINAL.search(hostname)
    return {"pod": hostname} if number is None else {"pod": hostname, "ordinal": int(number[1])}


def uses(texts: Sequence[str], name: str) -> bool:
    """Whether the template occurs."""
    return any(match[1] == name for text in texts for match in _TEMPLATE.finditer(text))
