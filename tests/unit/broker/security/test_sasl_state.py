"""The SASL state of a connection: session lifetimes and reauthentication."""

import pytest

from penstock.broker.security.exchange import Done
from penstock.broker.security.plain import PlainServer
from penstock.broker.security.sasl import SaslPhase, SaslState
from penstock.protocol.sasl.mechanisms import AuthenticationFailed, plain_message


def state(max_reauth_ms: int = 0) -> SaslState:
    return SaslState(("PLAIN", "X"), lambda _: PlainServer(), max_reauth_ms=max_reauth_ms)


def authenticate(sasl: SaslState, user: str, now: float, expires_ms: int | None = None) -> int:
    assert sasl.handshake("PLAIN", 1)
    sasl.receive(plain_message(user, "p"))
    return sasl.complete(Done(user, expires_ms=expires_ms), now=now, now_ms=int(now * 1_000))


def test_a_session_without_a_limit_does_not_expire() -> None:
    sasl = state()
    assert authenticate(sasl, "u", 1.0) == 0
    assert sasl.phase is SaslPhase.COMPLETE
    assert str(sasl.principal) == "User:u"
    assert not sasl.is_expired(1e9)
    assert not sasl.begin_reauthentication(1e9)


@pytest.mark.parametrize(
    ("max_reauth_ms", "expires_ms", "lifetime_ms"),
    [(5_000, None, 5_000), (0, 4_000, 3_000), (5_000, 4_000, 3_000), (2_000, 4_000, 2_000)],
)
def test_the_shorter_lifetime_applies(
    max_reauth_ms: int, expires_ms: int | None, lifetime_ms: int
) -> None:
    sasl = state(max_reauth_ms)
    assert authenticate(sasl, "u", 1.0, expires_ms) == lifetime_ms
    assert not sasl.is_expired(1 + lifetime_ms / 1_000)
    assert sasl.is_expired(1.001 + lifetime_ms / 1_000)


def test_a_client_can_reauthenticate() -> None:
    sasl = state(5_000)
    authenticate(sasl, "u", 1.0)
    assert sasl.begin_reauthentication(4.0)
    authenticate(sasl, "u", 4.0)
    assert not sasl.is_expired(8.0)
    assert not sasl.begin_reauthentication(4.5), "at most once a second"
    assert sasl.begin_reauthentication(5.5)


def test_reauthentication_cannot_change_the_user() -> None:
    sasl = state(5_000)
    authenticate(sasl, "u", 1.0)
    sasl.begin_reauthentication(4.0)
    with pytest.raises(AuthenticationFailed) as failed:
        authenticate(sasl, "admin", 4.0)
    assert failed.value.told == (
        "Cannot change principals during re-authentication from User.u: User.admin"
    )
    assert str(sasl.principal) == "User:u"


def test_reauthentication_cannot_change_the_mechanism() -> None:
    sasl = state(5_000)
    authenticate(sasl, "u", 1.0)
    sasl.begin_reauthentication(4.0)
    assert sasl.handshake("X", 1)
    with pytest.raises(AuthenticationFailed) as failed:
        sasl.receive(plain_message("u", "p"))
    assert "re-authentication of mechanism 'PLAIN'" in (failed.value.told or "")


def test_the_error_message_does_not_reveal_whether_a_user_exists() -> None:
    sasl = state()
    sasl.handshake("PLAIN", 1)
    assert sasl.fail(AuthenticationFailed("no such user")) == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        " PLAIN"
    )
    assert sasl.phase is SaslPhase.FAILED


def test_an_unknown_mechanism_fails() -> None:
    sasl = state()
    assert not sasl.handshake("GSSAPI", 1)
    assert sasl.phase is SaslPhase.FAILED


def test_error_messages_for_clients_are_truncated() -> None:
    """Some messages contain names chosen by the client, here of 100,000 characters."""
    sasl = state()
    assert sasl.handshake("PLAIN", 1)
    error = AuthenticationFailed("the authorization id differs", told="x" * 100_000)
    assert len(sasl.fail(error)) == 1_000
