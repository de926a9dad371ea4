"""Listener settings, which override general settings for one listener (KIP-103). Their names are
`listener.name.NAME.SETTING`, with the listener name in lowercase and a setting whose annotation
contains `per_listener`. Pure.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from penstock.base.listeners import LISTENER_PREFIX, ListenerKey, split_key
from penstock.base.settings import Field, fields_of
from penstock.broker.config import BrokerConfig
from penstock.broker.security.config import SecurityConfig
from penstock.protocol.sasl.mechanisms import MECHANISMS

_FORM: Final = (
    f"{LISTENER_PREFIX}NAME.SETTING, with the name of the listener in small letters, as in"
    f" {LISTENER_PREFIX}external.ssl.client.auth"
)


@cache
def listener_settings() -> Mapping[str, Field]:
    """Return the settings that a listener can override, by their general names."""
    return {
        field.name: field
        for part in (BrokerConfig, SecurityConfig)
        for field in fields_of(part)
        if field.setting.per_listener
    }


def listener_field(name: str) -> Field | None:
    """Return the listener setting with this name, or None."""
    key = split_key(name)
    common = None if key is None else listener_settings().get(key.setting)
    if key is None or common is None:
        return None
    doc = f"`{key.setting}` of one listener."
    return replace(common, setting=replace(common.setting, name=name), doc=doc)


def listener_key_problem(name: str) -> str:
    """Return the reason why the name is not a listener setting, and what to do. Empty if it is a
    listener setting or does not have their prefix.
    """
    if not name.startswith(LISTENER_PREFIX) or listener_field(name) is not None:
        return ""
    key = split_key(name)
    if key is None:
        return f"write {_FORM}"
    known = listener_settings()
    mechanism, _, setting = key.setting.partition(".")
    if mechanism.upper() in MECHANISMS and setting in known:
        short = ListenerKey(key.listener, setting)
        return f"a mechanism has no settings of its own here; set {short}"
    return (
        f"{key.setting} is not a setting of a single listener; these are {', '.join(known)}. Set"
        " others for all listeners"
    )
