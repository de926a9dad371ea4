"""Write the seeds of the login parsers."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID, ObjectIdentifier
from jwt.utils import to_base64url_uint

from penstock.base.scram import SCRAM_BY_NAME, ScramMechanism
from penstock.broker.security.scram import ScramServer, TokenLogin
from penstock.protocol.sasl.mechanisms import bearer_message, plain_message
from penstock.protocol.sasl.scram import ScramClient
from tests.fuzz import logins

Seeds = Iterator[tuple[str, bytes]]
_HEADER: dict[str, Any] = {"alg": "ES256", "kid": "one", "typ": "JWT"}
_NOW_S = logins.NOW_MS // 1_000
_CLAIMS: dict[str, Any] = {
    "sub": logins.USER,
    "iat": _NOW_S - 10,
    "nbf": _NOW_S - 10,
    "exp": _NOW_S + 100,
    "aud": ["kafka", "other"],
    "iss": "us",
    "scope": "a b",
}
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def scram(mechanism: ScramMechanism) -> Seeds:
    client = ScramClient(mechanism, logins.USER, logins.PASSWORD, nonce="client-nonce")
    server = ScramServer(
        mechanism,
        lambda *_: logins.credential(mechanism),
        lambda *_: logins.credential(mechanism),
        nonce=logins.NONCE,
    )
    first = client.first()
    final = client.final(server.receive(first).data)
    yield "right", first + logins.SEPARATOR + final
    yield "authzid", b"n,a=alice,n=alice,r=abc,x=y"
    yield "escapes", b"y,,n=a=2Cb=3D,r=abc"
    yield "extension", b"n,,n=alice,r=abc,tokenauth=true"
    holder = ScramClient(
        mechanism, logins.TOKEN_ID, logins.PASSWORD, nonce="client-nonce", by_token=True
    )
    server = ScramServer(
        mechanism,
        lambda *_: None,
        lambda *_: logins.credential(mechanism),
        nonce=logins.NONCE,
        find_token=lambda *_: TokenLogin(logins.credential(mechanism), logins.USER, 1),
    )
    first = holder.first()
    yield "token", first + logins.SEPARATOR + holder.final(server.receive(first).data)


def plain() -> Seeds:
    yield "right", plain_message(logins.USER, logins.PASSWORD)
    yield "authzid", b"bob" + plain_message(logins.USER, logins.PASSWORD)
    yield "twice", plain_message("a", "b") + logins.SEPARATOR + plain_message("a", "b")


def bearer() -> Seeds:
    yield "malformed", bearer_message("a.b.c") + logins.SEPARATOR + b"\x01"
    token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9."
    yield "none", bearer_message(token) + logins.SEPARATOR + b"\x01"
    yield "authzid", b"n,a=bob,\x01auth=Bearer a.b.c\x01host=x\x01port=1\x01\x01"


def jwt() -> Seeds:
    def seed(header: dict[str, Any], claims: dict[str, Any]) -> bytes:
        return json.dumps(header).encode() + logins.SEPARATOR + json.dumps(claims).encode()

    yield "right", seed(_HEADER, _CLAIMS)
    yield "crit", seed({**_HEADER, "crit": ["b64"], "b64": False}, _CLAIMS)
    yield "text-audience", seed(_HEADER, {**_CLAIMS, "aud": "kafka", "exp": 2e9})
    yield "no-key-id", seed({"alg": "ES256"}, _CLAIMS)
    yield "half-character", seed(_HEADER, {**_CLAIMS, "sub": "\ud800"})
    yield "far-away", seed(_HEADER, {**_CLAIMS, "exp": 10**300})
    yield "deep", seed(_HEADER, {}) + b'{"a":' + b"[" * 5_000


def jwks() -> Seeds:
    yield "ec", logins.JWKS
    number = to_base64url_uint(Random(7).getrandbits(2_048) | 1 | 1 << 2_047).decode()
    one = {"kty": "RSA", "n": number, "e": "AQAB", "kid": "one", "use": "sig"}
    two = {**one, "kid": "two", "alg": "RS256", "x5c": ["a"], "key_ops": ["verify"]}
    yield "rsa", json.dumps({"keys": [one, two]}).encode()
    others = [{"kty": "oct", "k": "c2VjcmV0"}, {"kty": "OKP", "crv": "Ed25519", "x": "AA"}, 7, []]
    yield "others", json.dumps({"keys": others}).encode()
    odd: dict[str, Any] = {"kty": ["RSA"], "n": 1, "e": {}, "kid": None, "alg": [1], "use": {}}
    yield "odd", json.dumps({"keys": [odd, {**one, "alg": []}, {**one, "n": ""}]}).encode()
    yield "deep", b'{"keys":' + b"[" * 5_000


def users() -> Seeds:
    yield "users", b"# users\nalice:secret\n\nbob:a:b\r\nJ\xc3\xbcrgen:pass word\n"
    yield "twice", b"alice:a\nalice:b\n"


def principal_rules() -> Seeds:
    rules = (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/L,"
        r" RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*)\/.*$/$12\//U, DEFAULT"
    )
    for number, name in enumerate(("CN=a,OU=ServiceUsers,O=o", "CN=a,OU=b,O=c", "cn=a/b", "x")):
        yield f"rules-{number}", rules.encode() + logins.SEPARATOR + name.encode()
    yield "greedy", b"RULE:(a+)+b/$1/, DEFAULT" + logins.SEPARATOR + b"a" * 64


def _certificate(*parts: tuple[ObjectIdentifier, str]) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(*part, _validate=False) for part in parts])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(_KEY.public_key())
        .serial_number(7)
        .not_valid_before(_WHEN)
        .not_valid_after(_WHEN.replace(year=2040))
        .sign(_KEY, None)
    )


def certificates() -> Seeds:
    email = (NameOID.EMAIL_ADDRESS, "a@b.c")
    yield "plain", _certificate((NameOID.COMMON_NAME, "orders")).public_bytes(Encoding.DER)
    parts = ((NameOID.COUNTRY_NAME, "DE"), email, (NameOID.COMMON_NAME, " a,b=#c "))
    yield "parts", _certificate(*parts).public_bytes(Encoding.DER)
    long = (ObjectIdentifier("1.2.3.4"), "x" * 300)
    yield "long", _certificate(long).public_bytes(Encoding.DER)


def keystores() -> Seeds:
    key = _KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = _certificate((NameOID.COMMON_NAME, "broker")).public_bytes(Encoding.PEM)
    yield "right", key + certificate
    yield "chain", key + certificate * 2


def corpora() -> Iterator[tuple[str, Seeds]]:
    """Yield the name of each target and its seeds."""
    for name, mechanism in SCRAM_BY_NAME.items():
        yield name.lower(), scram(mechanism)
    yield "plain", plain()
    yield "oauthbearer", bearer()
    yield "jwt", jwt()
    yield "jwks", jwks()
    yield "users-file", users()
    yield "principal-rules", principal_rules()
    yield "certificate", certificates()
    yield "keystore", keystores()
