"""OAUTHBEARER tokens: everything that is not provably valid is rejected."""

import base64
import hmac
import json
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from penstock.broker.security.tokens import ScopeMissing, TokenRules, UnknownKey, parse_keys, verify
from penstock.protocol.sasl.mechanisms import AuthenticationFailed

RSA: Final = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER: Final = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC: Final = ec.generate_private_key(ec.SECP256R1())
NOW_MS: Final = 1_800_000_000_000
NOW_S: Final = NOW_MS // 1_000
CLAIMS: Final[dict[str, Any]] = {"sub": "alice", "iat": NOW_S - 10, "exp": NOW_S + 100}


def jwk(key: Any, key_id: str, **more: str) -> dict[str, Any]:
    made = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**made.to_jwk(key.public_key(), as_dict=True), "kid": key_id, **more}


KEYS: Final = parse_keys(json.dumps({"keys": [jwk(RSA, "r"), jwk(EC, "e")]}).encode())


def token(
    key: Any = RSA, algorithm: str = "RS256", key_id: str | None = "r", **changes: Any
) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims, key, algorithm=algorithm, headers=headers)


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [(RSA, "RS256", "r"), (RSA, "PS512", "r"), (EC, "ES256", "e"), (EC, "ES256", None)],
)
def test_signed_tokens_are_accepted(key: Any, algorithm: str, key_id: str | None) -> None:
    found = verify(token(key, algorithm, key_id), KEYS, TokenRules(), NOW_MS)
    assert found == ("alice", (NOW_S + 100) * 1_000)


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW_S - 31},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": 1e400},
        {"exp": 10**300},
        {"exp": 253_402_300_800},
        {"iat": -(10**300)},
        {"iat": None},
        {"iat": NOW_S + 31},
        {"nbf": NOW_S + 31},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "\ud800"},
        {"scope": 7},
        {"scope": [1]},
        {"aud": "elsewhere"},
        {"aud": {"x": 1}},
    ],
)
def test_wrong_claims_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationFailed):
        verify(token(**changes), KEYS, TokenRules(), NOW_MS)


def test_unexpected_audience_and_issuer_are_rejected() -> None:
    rules = TokenRules(audiences=("here",), issuer="us")
    assert verify(token(aud=["x", "here"], iss="us"), KEYS, rules, NOW_MS).user == "alice"
    for changes in (
        {"aud": "here"},
        {"iss": "us"},
        {"aud": "there", "iss": "us"},
        {"aud": "here", "iss": "them"},
    ):
        with pytest.raises(AuthenticationFailed):
            verify(token(**changes), KEYS, rules, NOW_MS)


@pytest.mark.parametrize(
    ("scope", "missing"),
    [
        ("kafka write", None),
        ("write other kafka", None),
        (["write", "kafka"], None),
        ("kafka", "write"),
        ("kafkawrite", "kafka, write"),
        ("KAFKA WRITE", "kafka, write"),
        ("kafka\twrite", "kafka, write"),
        (["kafka write"], "kafka, write"),
        (["kafka"], "write"),
        ("", "kafka, write"),
        ([], "kafka, write"),
        (None, "kafka, write"),
    ],
)
def test_all_required_scopes_must_be_present(
    scope: str | list[str] | None, missing: str | None
) -> None:
    rules = TokenRules(required_scopes=("kafka", "write"))
    given = token(scope=scope)
    if missing is None:
        assert verify(given, KEYS, rules, NOW_MS).user == "alice"
        return
    with pytest.raises(ScopeMissing, match=f"lacks the scope {missing}$"):
        verify(given, KEYS, rules, NOW_MS)


def test_scopes_can_be_in_another_claim() -> None:
    rules = TokenRules(required_scopes=("kafka",), scope_claim="scp")
    assert verify(token(scp="kafka"), KEYS, rules, NOW_MS).user == "alice"
    with pytest.raises(ScopeMissing):
        verify(token(scope="kafka"), KEYS, rules, NOW_MS)
    for malformed in (7, {"kafka": 1}, ["kafka", 1]):
        with pytest.raises(AuthenticationFailed, match="malformed"):
            verify(token(scp=malformed), KEYS, rules, NOW_MS)


def test_small_clock_skew_is_tolerated() -> None:
    assert verify(token(exp=NOW_S - 29), KEYS, TokenRules(), NOW_MS).user == "alice"


def test_the_user_can_be_in_another_claim() -> None:
    rules = TokenRules(user_claim="client_id")
    assert verify(token(client_id="bob"), KEYS, rules, NOW_MS).user == "bob"


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "HS256", "RS1", None])
def test_tokens_without_an_asymmetric_signature_are_rejected(algorithm: str | None) -> None:
    for signature in ("", "AAAA"):
        forged = f"{part({'alg': algorithm, 'kid': 'r'})}.{part(CLAIMS)}.{signature}"
        with pytest.raises(AuthenticationFailed):
            verify(forged, KEYS, TokenRules(), NOW_MS)


def test_a_public_key_is_not_accepted_as_a_shared_secret() -> None:
    """The classic attack: HS256 with the public key as the secret."""
    secret = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{part({'alg': 'HS256', 'kid': 'r'})}.{part(CLAIMS)}"
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), "sha256"))
    with pytest.raises(AuthenticationFailed):
        verify(f"{signed}.{signature.rstrip(b'=').decode()}", KEYS, TokenRules(), NOW_MS)


def test_a_wrong_key_is_rejected() -> None:
    with pytest.raises(AuthenticationFailed) as failed:
        verify(token(OTHER), KEYS, TokenRules(), NOW_MS)
    assert not isinstance(failed.value, UnknownKey)
    with pytest.raises(UnknownKey):
        verify(token(OTHER, key_id="new"), KEYS, TokenRules(), NOW_MS)


def test_a_key_of_another_type_is_not_used() -> None:
    with pytest.raises(UnknownKey):
        verify(token(RSA, "RS256", "e"), KEYS, TokenRules(), NOW_MS)


def test_a_changed_token_is_rejected() -> None:
    head, _, signature = token().split(".")
    changed = f"{head}.{part({**CLAIMS, 'sub': 'admin'})}.{signature}"
    for forged in (changed, token()[:-4], "", ".", "a.b.c", "a" * 10_000, token() + "."):
        with pytest.raises(AuthenticationFailed):
            verify(forged, KEYS, TokenRules(), NOW_MS)


def test_a_key_embedded_in_the_token_is_not_used() -> None:
    headers = {"kid": "evil", "jwk": jwk(OTHER, "evil"), "jku": "http://evil"}
    forged = jwt.encode(CLAIMS, OTHER, algorithm="RS256", headers=headers)
    with pytest.raises(UnknownKey):
        verify(forged, KEYS, TokenRules(), NOW_MS)


def test_keys_for_other_purposes_are_ignored() -> None:
    document = {
        "keys": [
            jwk(RSA, "a", use="enc"),
            {"kty": "oct", "k": "c2VjcmV0", "kid": "b"},
            {"kty": "RSA", "kid": "c"},
            "text",
            jwk(RSA, "d", use="sig", alg="RS256"),
        ]
    }
    keys = parse_keys(json.dumps(document).encode())
    assert [key.key_id for key in keys] == ["d"]
    with pytest.raises(UnknownKey):
        verify(token(RSA, "PS256", "d"), keys, TokenRules(), NOW_MS)


def test_deep_nesting_is_rejected() -> None:
    deep = base64.urlsafe_b64encode(b'{"a":' + b"[" * 100_000).rstrip(b"=").decode()
    for forged in (f"{deep}.e30.AAAA", f"{part({'alg': 'RS256', 'kid': 'r'})}.{deep}.AAAA"):
        with pytest.raises(AuthenticationFailed):
            verify(forged, KEYS, TokenRules(), NOW_MS)


@pytest.mark.parametrize(
    "odd",
    [
        {"kty": ["RSA"]},
        {"kid": None},
        {"alg": ["RS256"]},
        {"use": {}},
        {"n": 7},
        {"e": {}},
        {"n": ""},
        {"n": "A" * 100},
    ],
)
def test_unsupported_key_types_are_ignored(odd: dict[str, Any]) -> None:
    """Short keys are ignored, too: the last one has 600 bits."""
    document = {"keys": [jwk(RSA, "a") | odd, jwk(EC, "b")]}
    assert [key.key_id for key in parse_keys(json.dumps(document).encode())] == ["b"]


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"keys": 1}', b"\xff", b'{"keys":' + b"[" * 100_000]
)
def test_invalid_jwks_documents_are_errors(document: bytes) -> None:
    with pytest.raises(ValueError, match="JWKS"):
        parse_keys(document)
