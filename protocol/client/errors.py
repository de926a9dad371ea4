"""Failures of the blocking client."""

from typing import Final

from penstock.base.errors import ExpectedError
from penstock.protocol.error_codes import ErrorCode, explain

NOT_FOUND: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
"""Error codes for resources that do not exist."""


class KafkaFailed(ExpectedError):
    """The brokers did not respond, or rejected a request."""


class DoesNotExist(KafkaFailed):
    """A topic, group, broker or other requested resource does not exist."""


class AuthenticationRefused(KafkaFailed):
    """A broker rejects the user, the password or the certificate of a client."""


class NoResponse(KafkaFailed):
    """The brokers for a request do not respond, but may later."""


class NoBroker(NoResponse):
    """No broker responds at any address. reason: the problem at one of the addresses; empty if
    unknown.
    """

    def __init__(self, bootstrap: str, reason: str = "") -> None:
        super().__init__(f"no broker responds at {bootstrap}" + (f": {reason}" if reason else ""))
        self.reason = reason


class Moved(KafkaFailed):
    """Another broker is now responsible, or soon will be, so the request must be repeated."""


class BrokerGone(Moved, NoResponse):
    """The responsible broker does not respond; another one may be responsible soon."""


class Refused(KafkaFailed):
    """A broker responded with an error."""

    def __init__(self, failed: str, code: int, message: str | None = None) -> None:
        super().__init__(f"{failed}: {explain(code, message)}")
        self.code = code


def check(code: int, message: str | None, failed: str) -> None:
    """Raise Refused for a code other than 0. message: the broker's message; None for the default
    message of the code.
    """
    if code:
        raise Refused(failed, code, message)
