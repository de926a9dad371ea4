"""Registered schemas, and the errors of registries and schemas."""

from typing import Final

from msgspec import Struct

from penstock.base.errors import StreamError

SHOWN_CHARS_MAX: Final = 200
"""Maximum length of an excerpt of a record or a schema in a message."""


class RegistryError(StreamError):
    """The registry did not respond as expected. The message contains the registry and the
    request, never credentials.
    """


class RegistryUnavailable(RegistryError):
    """The registry is down, overloaded or unreachable, so a later request may succeed."""

    retriable = True


class NotRegistered(RegistryError):
    """The schema or subject is not registered."""


class RegistrySettingInvalid(ValueError):
    """A registry setting is invalid. The message contains no credentials."""


class RegistryUrlInvalid(RegistrySettingInvalid):
    """The URL is not a valid registry URL."""


class SchemaInvalid(Exception):
    """The text is not a valid schema in its language. The message contains the position."""


class CannotCheck(Exception):
    """This process cannot use schemas of this language. The message states what is missing."""


class StoredSchema(Struct, frozen=True):
    """A schema in the registry. type: AVRO, JSON or PROTOBUF. references: (name, schema) pairs,
    each after the schemas that it refers to.
    """

    type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


def brief(text: str) -> str:
    """Shorten a text for a message."""
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
