"""Authentication on listeners with their own settings: tokens and sessions."""

from pathlib import Path

import pytest

from penstock.broker.security.access import ClientAccess
from penstock.broker.security.config import SecurityConfig
from penstock.broker.security.exchange import Done
from penstock.protocol.sasl.mechanisms import AuthenticationFailed
from tests.support.token_issuer import TokenIssuer

OWN = "listener.name.b."


async def test_a_listener_verifies_tokens_with_its_own_settings(tmp_path: Path) -> None:
    """Listeners with the same settings share the keys, which are fetched once."""
    ours, theirs = TokenIssuer(), TokenIssuer()
    for name, issuer in (("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_bytes(issuer.document())
    access = ClientAccess(
        SecurityConfig(
            sasl_enabled_mechanisms=("OAUTHBEARER",),
            sasl_jwks_endpoint_url=f"file:{tmp_path / 'ours'}",
            sasl_oauth_expected_audience=("kafka",),
            listener_values=(
                (f"{OWN}sasl.oauthbearer.jwks.endpoint.url", f"file:{tmp_path / 'theirs'}"),
                (f"{OWN}sasl.oauthbearer.sub.claim.name", "client_id"),
                ("listener.name.c.sasl.enabled.mechanisms", ("PLAIN",)),
            ),
        )
    )
    keys = {name: access.listener(name).keys for name in ("A", "B", "C", "D")}
    assert keys["A"] is keys["D"]
    assert keys["C"] is None
    common, own = keys["A"], keys["B"]
    assert common is not None
    assert own is not None
    assert (await common.verify(ours.token())).user == "carol"
    assert (await own.verify(theirs.token(client_id="dave"))).user == "dave"
    for wrong, token in ((common, theirs.token()), (own, ours.token(client_id="dave"))):
        with pytest.raises(AuthenticationFailed):
            await wrong.verify(token)
    await access.close()


async def test_the_session_lifetime_is_that_of_the_listener() -> None:
    access = ClientAccess(
        SecurityConfig(
            sasl_enabled_mechanisms=("PLAIN",),
            connections_max_reauth_ms=5,
            listener_values=(
                (f"{OWN}connections.max.reauth.ms", 70_000),
                (f"{OWN}sasl.server.max.receive.size", 2_048),
            ),
        )
    )
    lifetimes_ms = {}
    for name in ("A", "B"):
        sasl = access.listener(name).new_sasl()
        assert sasl.handshake("PLAIN", 1)
        lifetimes_ms[name] = sasl.complete(Done("alice"), now=0.0, now_ms=0)
    assert lifetimes_ms == {"A": 5, "B": 70_000}
    sizes = [access.listener(name).config.sasl_receive_bytes_max for name in ("A", "B")]
    assert sizes == [512 * 1024, 2_048]
    await access.close()
