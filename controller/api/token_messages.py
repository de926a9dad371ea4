"""Define the messages about delegation tokens. Brokers send them for their clients.

A reply has the token as it is then. Periods are in milliseconds, and counted by the clock of the
controller.
"""

from typing import Final

from penstock.controller.api.messages import ForwardedMessage, Message
from penstock.controller.metadata.records import DelegationTokenRecord

RENEWERS_MAX: Final = 100
"""Renewers of one token."""


class CreateDelegationToken(ForwardedMessage, frozen=True, kw_only=True):
    """Create a token. token_id: drawn by the broker. owner, requester, renewers: principals such as
    `User:alice`. lifetime_ms: how long it can be renewed. period_ms: until it has to be renewed.
    -> DelegationTokenReply.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    lifetime_ms: int
    period_ms: int


class RenewDelegationToken(ForwardedMessage, frozen=True, kw_only=True):
    """Let a token end `period_ms` from now, but not after its lifetime. principal: who asks.
    -> DelegationTokenReply.
    """

    token_id: str
    principal: str
    period_ms: int


class ExpireDelegationToken(ForwardedMessage, frozen=True, kw_only=True):
    """Let a token end `period_ms` from now, but not after its lifetime; negative: remove it. The
    reply has the token as it was then, with the time of its end. -> DelegationTokenReply.
    """

    token_id: str
    principal: str
    period_ms: int


class DelegationTokenReply(Message, frozen=True, kw_only=True):
    token: DelegationTokenRecord
