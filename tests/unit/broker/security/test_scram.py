"""SCRAM with the example conversations of RFC 5802 and RFC 7677, and under attacks."""

import base64
from typing import Final

import pytest

from penstock.base.scram import (
    ScramCredential,
    ScramMechanism,
    credential_of,
    is_password,
    salted_password,
)
from penstock.broker.security.exchange import Challenge, Done
from penstock.broker.security.scram import ScramServer
from penstock.protocol.sasl.mechanisms import AuthenticationFailed
from penstock.protocol.sasl.scram import ScramClient, escaped, unescaped

SHA_256: Final = ScramMechanism.SCRAM_SHA_256
SHA_512: Final = ScramMechanism.SCRAM_SHA_512
CLIENT_NONCE: Final = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE: Final = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT: Final = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def credential(password: str, mechanism: ScramMechanism = SHA_256) -> ScramCredential:
    salted = salted_password(mechanism, password, SALT, 4_096)
    return credential_of(mechanism, salted, SALT, 4_096)


def server(
    users: dict[str, str], mechanism: ScramMechanism = SHA_256, nonce: str = SERVER_NONCE
) -> ScramServer:
    def find(requested: ScramMechanism, user: str) -> ScramCredential | None:
        return credential(users[user], requested) if user in users else None

    def pretend(_mechanism: ScramMechanism, user: str) -> ScramCredential:
        return ScramCredential(f"salt of {user}".encode(), b"", b"", 4_096)

    return ScramServer(mechanism, find, pretend, nonce=nonce)


def data_of(step: Challenge | Done) -> bytes:
    return step.data


def test_the_example_conversation_of_rfc_7677() -> None:
    """Section 3: user `user`, password `pencil`."""
    ours, client = (
        server({"user": "pencil"}),
        ScramClient(SHA_256, "user", "pencil", nonce=CLIENT_NONCE),
    )
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = data_of(ours.receive(client.first()))
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.final(first)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert ours.receive(final) == Done("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user", ["a", "a,b=c", "Jürgen", "=2C", "x" * 500])
def test_client_and_server_authenticate_each_other(mechanism: ScramMechanism, user: str) -> None:
    ours = server({user: "pässword"}, mechanism)
    client = ScramClient(mechanism, user, "pässword", nonce="n")
    final = client.final(data_of(ours.receive(client.first())))
    done = ours.receive(final)
    assert isinstance(done, Done)
    assert done.user == user
    client.check(done.data)


def test_a_wrong_password_and_an_unknown_user_get_the_same_response() -> None:
    messages: list[str] = []
    for users in ({"user": "other"}, {}):
        ours, client = server(users), ScramClient(SHA_256, "user", "pencil", nonce="n")
        final = client.final(data_of(ours.receive(client.first())))
        with pytest.raises(AuthenticationFailed) as failed:
            ours.receive(final)
        assert failed.value.told is None
        messages.append(str(failed.value))
    assert messages[0] == messages[1]


def test_pretended_credentials_never_authenticate() -> None:
    """Even a proof that matches the pretended keys is rejected."""

    def nobody(_mechanism: ScramMechanism, _user: str) -> None:
        return None

    def pretend(_mechanism: ScramMechanism, _user: str) -> ScramCredential:
        return credential("known")

    ours = ScramServer(SHA_256, nobody, pretend, nonce="n")
    client = ScramClient(SHA_256, "ghost", "known", nonce="n")
    final = client.final(data_of(ours.receive(client.first())))
    with pytest.raises(AuthenticationFailed):
        ours.receive(final)


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=abc",  # channel binding
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,r=abc,m=ext",
        b"n,,n=us=er,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user",
        b"n,a=,n=user,r=abc",
        b"",
        b"\xff\xfe",
        b"n,,n=user,r=a\x00c",
    ],
)
def test_malformed_first_messages_are_rejected(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server({"user": "pencil"}).receive(first)


def test_an_authorization_id_must_be_the_user() -> None:
    assert isinstance(server({"user": "p"}).receive(b"n,a=user,n=user,r=abc"), Challenge)
    with pytest.raises(AuthenticationFailed) as failed:
        server({"user": "p", "admin": "q"}).receive(b"n,a=admin,n=user,r=abc")
    assert "different from username" in (failed.value.told or "")


@pytest.mark.parametrize("header", ["n,,", "y,,"])
def test_a_client_may_state_that_the_server_has_no_channel_binding(header: str) -> None:
    ours = server({"user": "pencil"})
    first = data_of(ours.receive(f"{header}n=user,r=abc".encode()))
    assert first.startswith(b"r=abc")


def final_messages(header: str = "n,,") -> tuple[ScramServer, bytes]:
    ours = server({"user": "pencil"})
    client = ScramClient(SHA_256, "user", "pencil", nonce="abc")
    return ours, client.final(data_of(ours.receive(header.encode() + client.first()[3:])))


def test_a_changed_channel_binding_flag_is_rejected() -> None:
    """The client's first message contains `y`, and its final message `n`."""
    ours, final = final_messages("y,,")
    with pytest.raises(AuthenticationFailed, match="channel binding"):
        ours.receive(final)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"r=abc", b"r=abd"),
        (b"p=", b"p=AAAA"),
        (b",p=", b",x=1,p="),
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=%%%%"),
    ],
)
def test_a_changed_final_message_is_rejected(old: bytes, new: bytes) -> None:
    ours, final = final_messages()
    assert old in final
    with pytest.raises(AuthenticationFailed):
        ours.receive(final.replace(old, new, 1))


def test_a_replayed_final_message_is_rejected() -> None:
    """The server's nonce is different each time."""
    _, final = final_messages()
    ours = server({"user": "pencil"}, nonce="another")
    ours.receive(b"n,,n=user,r=abc")
    with pytest.raises(AuthenticationFailed, match="nonce"):
        ours.receive(final)


def test_a_final_message_without_a_proof_is_rejected() -> None:
    """A server that did not check for the proof would authenticate anyone."""
    ours, final = final_messages()
    for changed in (
        final.partition(b",p=")[0],
        final.partition(b",p=")[0] + b",p=",
        b"",
        final[:-4],
    ):
        with pytest.raises(AuthenticationFailed):
            ours.receive(changed)


@pytest.mark.parametrize(
    "response",
    [
        b"r=other,s=YQ==,i=4096",
        b"r=abcd,s=YQ==,i=1",
        b"r=abcd,s=YQ==,i=999999999",
        b"r=abcd,s=!,i=4096",
        b"e=other-error",
    ],
)
def test_a_client_rejects_an_invalid_server_final_message(response: bytes) -> None:
    client = ScramClient(SHA_256, "user", "pencil", nonce="abc")
    with pytest.raises(AuthenticationFailed):
        client.final(response)


def test_a_client_verifies_the_server_signature() -> None:
    client = ScramClient(SHA_256, "user", "pencil", nonce="abc")
    with pytest.raises(AuthenticationFailed):
        client.check(b"v=")
    client.final(b"r=abcd,s=YQ==,i=4096")
    with pytest.raises(AuthenticationFailed):
        client.check(b"v=AAAA")


@pytest.mark.parametrize("name", ["a", ",", "=", "=2C,=3D", "ü"])
def test_user_names_survive_escaping(name: str) -> None:
    assert unescaped(escaped(name)) == name
    assert "," not in escaped(name)


def test_passwords_are_verified_against_credentials() -> None:
    for mechanism in ScramMechanism:
        assert is_password(mechanism, "right", credential("right", mechanism))
        assert not is_password(mechanism, "wrong", credential("right", mechanism))


def test_credentials_are_not_in_the_repr() -> None:
    assert "hidden" in repr(credential("secret"))
    assert repr(credential("secret").stored_key) not in repr(credential("secret"))


def test_many_extensions_are_parsed_in_linear_time() -> None:
    """With an ambiguous pattern, each additional extension doubles the time."""
    token = b"n,,n=user,r=nonce" + b",a=x" * 100_000 + b",1"
    with pytest.raises(AuthenticationFailed, match="malformed"):
        server({"user": "pencil"}).receive(token)
