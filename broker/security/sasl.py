"""The SASL state of one connection: what it may send next, who it is, and until when.

    HANDSHAKE --SaslHandshake--> TOKENS --last token--> COMPLETE --SaslHandshake--> TOKENS ...

Invariants: pure; time is a parameter. Before COMPLETE only ApiVersions, SaslHandshake and tokens
are allowed. Authenticating again (KIP-368) changes neither the user nor the mechanism, and is
possible only on connections whose session ends, at most once a second.
Source: Kafka's SaslServerAuthenticator, KafkaChannel.maybeBeginServerReauthentication; KIP-43,
KIP-152, KIP-368.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from penstock.base.principal import ANONYMOUS, USER, Principal
from penstock.broker.security.exchange import AuthenticationFailed, Done, Exchange, Step

_AGAIN_INTERVAL_S: Final = 1.0
_FIRST_WITH_HEADERS: Final = 1
_TOLD_CHARACTERS_MAX: Final = 1_000
"""What an error tells a client may have names of its own choice, and a text on the wire has at most
32,767 bytes.
"""

MakeExchange = Callable[[str], Exchange]
"""Begin an authentication by the mechanism of this name."""


class SaslPhase(Enum):
    HANDSHAKE = auto()
    TOKENS = auto()
    COMPLETE = auto()
    FAILED = auto()


class SaslState:
    """max_reauth_ms: longest session, 0 for no limit."""

    def __init__(
        self, mechanisms: Sequence[str], make_exchange: MakeExchange, *, max_reauth_ms: int = 0
    ) -> None:
        self.mechanisms = mechanisms
        self.phase = SaslPhase.HANDSHAKE
        self.mechanism = ""
        self.has_headers = False
        """Whether tokens come in SaslAuthenticate requests; else each is a frame of its own."""
        self.principal: Principal = ANONYMOUS
        self.by_token = False
        """Whether the client has shown a delegation token."""
        self.exchange: Exchange | None = None
        self._make_exchange = make_exchange
        self._max_reauth_ms = max_reauth_ms
        self._expires_at: float | None = None
        self._began_again_at: float | None = None
        self._before = ""
        """The mechanism of the earlier authentication while the client authenticates again."""
        self._refusal = ""

    @property
    def takes_bare_tokens(self) -> bool:
        """Return whether the next frame is a token and no request."""
        return self.phase is SaslPhase.TOKENS and not self.has_headers

    def is_expired(self, now: float) -> bool:
        """Return whether the client should have authenticated again before now."""
        return self._expires_at is not None and now > self._expires_at

    def begin_again(self, now: float) -> bool:
        """Begin to authenticate again, if the client may."""
        began = self._began_again_at
        if self._expires_at is None or (began is not None and now - began < _AGAIN_INTERVAL_S):
            return False
        self._began_again_at = now
        self._before = self.mechanism
        self.phase = SaslPhase.HANDSHAKE
        return True

    def handshake(self, mechanism: str, version: int) -> bool:
        """Choose the mechanism. Returns False if there is no such mechanism here."""
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
        """Take the client's next token. Raises AuthenticationFailed."""
        if self._refusal:
            raise AuthenticationFailed(self._refusal, told=self._refusal)
        assert self.exchange is not None, "the handshake comes first"
        return self.exchange.receive(token)

    def complete(self, done: Done, *, now: float, now_ms: int) -> int:
        """Note who the client is. Returns how long the session lasts, in milliseconds; 0: no limit.
        Raises AuthenticationFailed.

        now: `loop.time()`. now_ms: wall clock.
        """
        principal = Principal(USER, done.user)
        if self._before and principal != self.principal:
            text = (
                "Cannot change principals during re-authentication from"
                f" {self.principal.kind}.{self.principal.name}: {principal.kind}.{principal.name}"
            )
            raise AuthenticationFailed("the client is another user now", told=text)
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
        """Note the failure. Returns the text for the client."""
        self.phase = SaslPhase.FAILED
        self.exchange = None
        if error.told is not None:
            return error.told[:_TOLD_CHARACTERS_MAX]
        during = "re-authentication" if self._before else "authentication"
        return (
            f"Authentication failed during {during} due to invalid credentials with SASL mechanism"
            f" {self.mechanism}"
        )
