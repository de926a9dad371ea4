"""The SASL state of one connection: the expected message, the authenticated user, and the end of
the session. Pure.

HANDSHAKE --SaslHandshake--> TOKENS --last token--> COMPLETE --SaslHandshake--> TOKENS ...
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from penstock.base.principal import ANONYMOUS, USER, Principal
from penstock.broker.security.exchange import Done, Exchange, Step
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

_AGAIN_INTERVAL_S: Final = 1.0
_FIRST_WITH_HEADERS: Final = 1
_MESSAGE_CHARACTERS_MAX: Final = 1_000
"""Maximum length of error messages, which may contain names chosen by the client. A string on the
wire has at most 32,767 bytes.
"""

MakeExchange = Callable[[str], Exchange]
"""Starts an exchange with the mechanism of this name."""


class SaslPhase(Enum):
    HANDSHAKE = auto()
    TOKENS = auto()
    COMPLETE = auto()
    FAILED = auto()


class SaslState:
    """The SASL state of one connection. Before COMPLETE, only ApiVersions, SaslHandshake and tokens
    are allowed. Reauthentication (KIP-368) cannot change the user or the mechanism. It is allowed
    only if the session lifetime is limited, and at most once per second.

    max_reauth_ms: maximum session lifetime; 0 for no limit.
    """

    def __init__(
        self, mechanisms: Sequence[str], make_exchange: MakeExchange, *, max_reauth_ms: int = 0
    ) -> None:
        self.mechanisms = mechanisms
        self.phase = SaslPhase.HANDSHAKE
        self.mechanism = ""
        self.has_headers = False
        """Whether tokens are sent in SaslAuthenticate requests. Otherwise, each token is a separate
        frame.
        """
        self.principal: Principal = ANONYMOUS
        self.by_token = False
        """Whether the client has used a delegation token."""
        self.exchange: Exchange | None = None
        self._make_exchange = make_exchange
        self._max_reauth_ms = max_reauth_ms
        self._expires_at: float | None = None
        self._reauthentication_began_at: float | None = None
        self._before = ""
        """During reauthentication, the mechanism of the previous authentication."""
        self._refusal = ""

    @property
    def takes_bare_tokens(self) -> bool:
        """Return whether the next frame is a token without a request header."""
        return self.phase is SaslPhase.TOKENS and not self.has_headers

    def is_expired(self, now: float) -> bool:
        """Return whether the deadline for reauthentication has passed."""
        return self._expires_at is not None and now > self._expires_at

    def begin_reauthentication(self, now: float) -> bool:
        """Start reauthentication. Return False if it is not allowed."""
        began = self._reauthentication_began_at
        if self._expires_at is None or (began is not None and now - began < _AGAIN_INTERVAL_S):
            return False
        self._reauthentication_began_at = now
        self._before = self.mechanism
        self.phase = SaslPhase.HANDSHAKE
        return True

    def handshake(self, mechanism: str, version: int) -> bool:
        """Select the mechanism. Return False if it is not enabled."""
        if mechanism not in self.mechanisms:
            self.phase = SaslPhase.FAILED
            return False
        if version >= _FIRST_WITH_HEADERS:
            self.has_headers = True
        if self._before and self._before != mechanism:
            self._refusal = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for"
                f" re-authentication of mechanism '{self._before}'"
            )
        self.mechanism = mechanism
        self.exchange = self._make_exchange(mechanism)
        self.phase = SaslPhase.TOKENS
        return True

    def receive(self, token: bytes) -> Step:
        """Process the client's next token. Raises AuthenticationFailed."""
        if self._refusal:
            raise AuthenticationFailed(self._refusal, told=self._refusal)
        assert self.exchange is not None, "the handshake comes first"
        return self.exchange.receive(token)

    def complete(self, done: Done, *, now: float, now_ms: int) -> int:
        """Set the user. Return the session lifetime in milliseconds, or 0 for no limit. Raises
        AuthenticationFailed.

        now: `loop.time()`. now_ms: wall clock.
        """
        principal = Principal(USER, done.user)
        if self._before and principal != self.principal:
            text = (
                "Cannot change principals during re-authentication from"
                f" {self.principal.kind}.{self.principal.name}: {principal.kind}.{principal.name}"
            )
            raise AuthenticationFailed("reauthentication with another user", told=text)
        limits = [self._max_reauth_ms] if self._max_reauth_ms else []
        if done.expires_ms is not None:
            limits.append(max(done.expires_ms - now_ms, 0))
        self._expires_at = now + min(limits) / 1_000 if limits else None
        self.principal = principal
        self.by_token = done.by_token
        self.exchange = None
        self.phase = SaslPhase.COMPLETE
        return min(limits) if limits else 0

    def fail(self, error: AuthenticationFailed) -> str:
        """Record the failure. Return the error message for the client."""
        self.phase = SaslPhase.FAILED
        self.exchange = None
        if error.told is not None:
            return error.told[:_MESSAGE_CHARACTERS_MAX]
        during = "re-authentication" if self._before else "authentication"
        return (
            f"Authentication failed during {during} due to invalid credentials with SASL mechanism"
            f" {self.mechanism}"
        )
