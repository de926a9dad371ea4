"""Clients authenticate with delegation tokens by SCRAM, as the token owners, until the tokens
expire.
"""

import base64

import pytest

from penstock.base.principal import USER, Principal
from penstock.base.scram import ScramMechanism
from penstock.broker.security.delegation_tokens import DelegationTokens
from penstock.broker.security.exchange import Done
from penstock.broker.security.sasl import SaslState
from penstock.broker.security.scram import ScramServer
from penstock.controller.metadata.records import DelegationTokenRecord
from penstock.protocol.sasl.mechanisms import AuthenticationFailed
from penstock.protocol.sasl.scram import ScramClient

NOW_MS = 1_000_000
KEY = "key of the brokers"


class Clock:
    now_ms = NOW_MS


def token(token_id: str = "t", expiry_ms: int = NOW_MS + 5_000) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        token_id, "User:alice", "User:admin", ("User:bob",), NOW_MS, expiry_ms, expiry_ms
    )


def known(*tokens: DelegationTokenRecord, key: str = KEY) -> DelegationTokens:
    by_id = {each.token_id: each for each in tokens}
    return DelegationTokens(key, by_id.get, lambda: Clock.now_ms)


def log_in(
    tokens: DelegationTokens,
    token_id: str,
    shown: bytes,
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256,
    *,
    by_token: bool = True,
) -> Done:
    pretender = known(token("x"))
    server = ScramServer(
        mechanism,
        lambda *_: None,
        lambda *_: pretender._credential(mechanism, "x"),
        nonce="server",
        find_token=tokens.login,
    )
    password = base64.b64encode(shown).decode()
    client = ScramClient(mechanism, token_id, password, nonce="client", by_token=by_token)
    challenge = server.receive(client.first())
    done = server.receive(client.final(challenge.data))
    assert isinstance(done, Done)
    client.check(done.data)
    return done


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_token_authenticates_its_owner_until_it_expires(mechanism: ScramMechanism) -> None:
    tokens = known(token())
    done = log_in(tokens, "t", tokens.hmac_of("t"), mechanism)
    assert (done.user, done.expires_ms, done.by_token) == ("alice", NOW_MS + 5_000, True)
    state = SaslState((mechanism.sasl_name,), lambda _: pytest.fail("no exchange begins"))
    assert state.complete(done, now=1.0, now_ms=NOW_MS) == 5_000
    assert (state.principal, state.by_token) == (Principal(USER, "alice"), True)
    assert not state.is_expired(5.9)
    assert state.is_expired(6.1)


def test_only_brokers_with_the_same_key_accept_a_token() -> None:
    shown = known(token()).hmac_of("t")
    assert len(shown) == 64
    assert log_in(known(token()), "t", shown).user == "alice"
    for key in ("another key", ""):
        with pytest.raises(AuthenticationFailed, match="the user or the password is wrong"):
            log_in(known(token(), key=key), "t", shown)


def test_wrong_expired_and_unknown_tokens_are_rejected() -> None:
    tokens = known(token(), token("ended", NOW_MS))
    for token_id, shown in (
        ("t", b"a guess"),
        ("ended", tokens.hmac_of("ended")),
        ("never", tokens.hmac_of("never")),
    ):
        with pytest.raises(AuthenticationFailed, match="the user or the password is wrong"):
            log_in(tokens, token_id, shown)


def test_a_token_id_is_not_a_user_name() -> None:
    tokens = known(token())
    with pytest.raises(AuthenticationFailed, match="the user or the password is wrong"):
        log_in(tokens, "t", tokens.hmac_of("t"), by_token=False)


def test_an_expired_token_is_rejected_although_it_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = known(token())
    log_in(tokens, "t", tokens.hmac_of("t"))
    monkeypatch.setattr(Clock, "now_ms", NOW_MS + 5_000)
    with pytest.raises(AuthenticationFailed):
        log_in(tokens, "t", tokens.hmac_of("t"))


def test_a_token_is_verified_by_its_hmac() -> None:
    tokens = known(token())
    assert tokens.is_of("t", tokens.hmac_of("t"))
    assert not tokens.is_of("t", tokens.hmac_of("u"))
    assert not tokens.is_of("t", b"")
