"""Fuzz the login parsers: SASL exchanges, tokens, JWKS documents, user files and certificates."""

import base64
import functools
import json
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from jwt.algorithms import ECAlgorithm

from penstock.base.scram import (
    ITERATIONS_MIN,
    SCRAM_BY_NAME,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)
from penstock.broker.security.config import SecurityConfig
from penstock.broker.security.distinguished_names import distinguished_name
from penstock.broker.security.exchange import CheckPassword, CheckToken, Done, Exchange
from penstock.broker.security.oauthbearer import OAuthBearerServer
from penstock.broker.security.plain import PlainServer
from penstock.broker.security.principal_rules import PrincipalRules
from penstock.broker.security.sasl import SaslState
from penstock.broker.security.scram import ScramServer, TokenLogin
from penstock.broker.security.tls import make_contexts
from penstock.broker.security.tokens import Key, TokenRules, VerifiedToken, parse_keys, verify
from penstock.broker.security.users_file import parse_users
from penstock.protocol.apis import SASL_AUTHENTICATE
from penstock.protocol.codecs import CODECS
from penstock.protocol.framing import encode_response_frame
from penstock.protocol.gen.sasl_authenticate import SaslAuthenticateResponse
from penstock.protocol.sasl.mechanisms import OAUTHBEARER, PLAIN, AuthenticationFailed

USER = "alice"
PASSWORD = "secret"
NONCE = "server-nonce"
TOKEN_ID = "token-of-alice"
SALT = b"a salt of alice"
NOW_MS = 1_800_000_000_000
SEPARATOR = b"\xfe\xff"
"""Separates the parts of an input. It is not valid UTF-8."""

MECHANISMS = (*SCRAM_BY_NAME, PLAIN, OAUTHBEARER)
RULES = TokenRules(audiences=("kafka",), issuer="us")
SIGNER = ec.derive_private_key(7, ec.SECP256R1())
JWKS = json.dumps(
    {"keys": [{**ECAlgorithm.to_jwk(SIGNER.public_key(), as_dict=True), "kid": "one"}]}
).encode()
KEYS = parse_keys(JWKS)


@functools.cache
def credential(mechanism: ScramMechanism) -> ScramCredential:
    salted = salted_password(mechanism, PASSWORD, SALT, ITERATIONS_MIN)
    return credential_of(mechanism, salted, SALT, ITERATIONS_MIN)


def _find(mechanism: ScramMechanism, user: str) -> ScramCredential | None:
    return credential(mechanism) if user == USER else None


def _pretend(mechanism: ScramMechanism, user: str) -> ScramCredential:
    user.encode()
    return credential(mechanism)


def _find_token(mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
    if token_id != TOKEN_ID:
        return None
    return TokenLogin(credential(mechanism), USER, NOW_MS + 1_000)


def _exchange(mechanism: str) -> Exchange:
    if mechanism == PLAIN:
        return PlainServer()
    if mechanism == OAUTHBEARER:
        return OAuthBearerServer()
    return ScramServer(
        SCRAM_BY_NAME[mechanism], _find, _pretend, nonce=NONCE, find_token=_find_token
    )


def sasl(mechanism: str, data: bytes) -> None:
    """Authenticate with the tokens between separators. Only the right user may be authenticated."""
    state = SaslState(MECHANISMS, _exchange)
    assert state.handshake(mechanism, 1)
    try:
        for token in data.split(SEPARATOR):
            done = _stepped(state, token)
            if done is not None:
                assert done.user == USER, done.user
                lifetime_ms = state.complete(done, now=1.0, now_ms=NOW_MS)
                _encode(SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))
                return
    except AuthenticationFailed as error:
        _encode(SaslAuthenticateResponse(error_code=58, error_message=state.fail(error)))
        raise


def _stepped(state: SaslState, token: bytes) -> Done | None:
    exchange = state.exchange
    step = state.receive(token)
    if isinstance(step, CheckPassword):
        if (step.user, step.password) != (USER, PASSWORD):
            raise AuthenticationFailed("wrong")
        return Done(step.user)
    if isinstance(step, CheckToken):
        assert isinstance(exchange, OAuthBearerServer)
        try:
            found = verify(step.token, KEYS, RULES, NOW_MS)
        except AuthenticationFailed:
            exchange.refuse()
            return None
        exchange.check_user(found.user)
        return Done(found.user, expires_ms=found.expires_ms)
    return step if isinstance(step, Done) else None


def _encode(response: SaslAuthenticateResponse) -> None:
    """Encode a response as the broker does, to find unencodable values."""
    for version in range(SASL_AUTHENTICATE.max + 1):
        encode = CODECS[SASL_AUTHENTICATE.key].encode_response
        encode_response_frame(SASL_AUTHENTICATE, version, 1, encode, response)


def jwt(data: bytes) -> None:
    """Verify a header and claims in JSON, first with a valid signature and then without one."""
    header, _, claims = data.partition(SEPARATOR)
    signed = f"{_url64(header)}.{_url64(claims)}"
    r, s = decode_dss_signature(
        SIGNER.sign(signed.encode(), ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    )
    signature = _url64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
    try:
        _use(verify(f"{signed}.{signature}", KEYS, RULES, NOW_MS))
    finally:
        _must_refuse(f"{signed}.", KEYS)
        _must_refuse(data.decode("latin-1"), KEYS)


def _use(token: VerifiedToken) -> None:
    """Validate a token as a broker does."""
    token.user.encode()
    state = SaslState(MECHANISMS, _exchange)
    state.handshake(OAUTHBEARER, 1)
    done = Done(token.user, expires_ms=token.expires_ms)
    lifetime_ms = state.complete(done, now=1.0, now_ms=NOW_MS)
    _encode(SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))


def _must_refuse(token: str, keys: list[Key]) -> None:
    try:
        verify(token, keys, RULES, NOW_MS)
    except AuthenticationFailed:
        return
    raise AssertionError("a token without a signature is accepted")


def _url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwks(data: bytes) -> None:
    """Parse a document, and verify tokens of each algorithm with its keys."""
    keys = parse_keys(data)
    for algorithm in ("ES256", "ES384", "ES512", "RS256", "PS512"):
        header = _url64(b'{"alg":"%s","kid":"one"}' % algorithm.encode())
        _must_refuse(f"{header}.{_url64(b'{}')}.{_url64(bytes(64))}", keys)


def users(data: bytes) -> None:
    for name, password in parse_users(data.decode()).items():
        assert name
        assert password


def principal_rules(data: bytes) -> None:
    """Apply the rules to the name that follows them in the input."""
    rules, _, name = data.partition(SEPARATOR)
    PrincipalRules.parse(rules.decode()).name_of(name.decode())


def certificate(data: bytes) -> None:
    distinguished_name(data).encode()


def keystore(data: bytes) -> None:
    """Load a PEM file as the key and certificate of a broker."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        make_contexts(
            SecurityConfig(
                ssl_keystore_location=file.name,
                ssl_truststore_location=file.name,
                ssl_key_password="secret",
            )
        )
