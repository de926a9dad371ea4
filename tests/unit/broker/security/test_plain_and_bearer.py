"""The messages of PLAIN and OAUTHBEARER."""

import pytest

from penstock.broker.security.exchange import CheckPassword, CheckToken
from penstock.broker.security.oauthbearer import OAuthBearerServer
from penstock.broker.security.plain import PlainServer
from penstock.protocol.sasl.mechanisms import AuthenticationFailed, bearer_message, plain_message


def test_plain_messages_contain_user_and_password() -> None:
    for message in (plain_message("u", "p"), b"u\0u\0p"):
        assert PlainServer().receive(message) == CheckPassword("u", "p")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"admin\0u\0p", "authorization id that is different"),
        (b"\0\0p", "username not specified"),
        (b"\0u\0", "password not specified"),
        (b"\0u", None),
        (b"\0u\0p\0x", None),
        (b"\0\xff\0p", None),
        (b"", None),
    ],
)
def test_malformed_plain_messages_are_rejected(message: bytes, told: str | None) -> None:
    """An authorization id does not let a client authenticate as another user."""
    with pytest.raises(AuthenticationFailed) as failed:
        PlainServer().receive(message)
    assert (told in (failed.value.told or "")) if told else failed.value.told is None


def test_passwords_are_not_in_the_repr() -> None:
    assert "secret" not in repr(PlainServer().receive(plain_message("u", "secret")))


@pytest.mark.parametrize(
    "message",
    [
        bearer_message("a.b.c"),
        b"n,a=me,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=bearer  a.b.c\x01traceId=7\x01\x01",
    ],
)
def test_bearer_messages_contain_a_token(message: bytes) -> None:
    assert OAuthBearerServer().receive(message) == CheckToken("a.b.c")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,auth=Bearer a.b.c\x01\x01",
        b"\xff" * 10,
    ],
)
def test_malformed_bearer_messages_are_rejected(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        OAuthBearerServer().receive(message)


def test_a_token_cannot_be_used_for_another_user() -> None:
    server = OAuthBearerServer()
    server.receive(b"n,a=me,\x01auth=Bearer a.b.c\x01\x01")
    server.check_user("me")
    with pytest.raises(AuthenticationFailed):
        server.check_user("you")


@pytest.mark.parametrize(
    ("scopes", "told"),
    [
        ((), '{"status":"invalid_token"}'),
        (("kafka", "write"), '{"status":"insufficient_scope","scope":"kafka write"}'),
    ],
)
def test_authentication_fails_with_the_message_after_a_rejected_token(
    scopes: tuple[str, ...], told: str
) -> None:
    server = OAuthBearerServer()
    server.receive(bearer_message("a.b.c"))
    assert server.refuse(scopes).data == told.encode()
    for message in (b"\x01", bearer_message("other.good.token")):
        with pytest.raises(AuthenticationFailed) as failed:
            server.receive(message)
        assert failed.value.told == told
