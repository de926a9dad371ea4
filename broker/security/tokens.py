"""Verify signed tokens (JWT) with the public keys of a JWKS document. Pure.

Only asymmetric signature algorithms are accepted: RS, PS and ES with 256, 384 and 512 bits. As in
Kafka, the claims `exp` and `iat` are required.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from penstock.protocol.sasl.mechanisms import AuthenticationFailed

ALGORITHMS: Final = tuple(
    f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)
)
KEYS_MAX: Final = 1_000
"""Maximum number of keys in a JWKS document. Additional ones are ignored."""
_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC"}
_RSA_BITS_MIN: Final = 2_048
"""The minimum required by RFC 7518, as in Kafka."""
_HEADER_CHARACTERS_MAX: Final = 1 << 13
"""Large enough for headers that contain certificates, yet fast to decode."""
_TEXTS: Final = ("kty", "kid", "alg", "use")
_USER_CHARACTERS_MAX: Final = 1_000
_TIME_MAX_S: Final = 253_402_300_799
"""The end of the year 9999. Computations with later times would overflow."""


class UnknownKey(AuthenticationFailed):
    """Raised if no key has the token's key id. The caller may then read the keys again."""


class ScopeMissing(AuthenticationFailed):
    """Raised if a token lacks a required scope."""

    def __init__(self, missing: Sequence[str], required: Sequence[str]) -> None:
        super().__init__(f"the token lacks the scope {', '.join(missing)}")
        self.required = required


class Key(NamedTuple):
    """A public key. key_id and algorithm: empty if missing in the document."""

    key_id: str
    type: str
    algorithm: str
    public: Any


class VerifiedToken(NamedTuple):
    user: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Requirements on a token's claims."""

    audiences: Sequence[str] = ()
    issuer: str = ""
    skew_ms: int = 30_000
    required_scopes: Sequence[str] = ()
    scope_claim: str = "scope"
    user_claim: str = "sub"


def parse_keys(document: bytes) -> list[Key]:
    """Return the usable keys in a JWKS document. Raises ValueError if the document is invalid."""
    try:
        items = json.loads(document)["keys"]
        if not isinstance(items, list):
            raise TypeError(items)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a JWKS document: {str(error)[:200]}") from None
    keys: list[Key] = []
    for item in cast("list[object]", items)[:KEYS_MAX]:
        key = _key(item)
        if key is not None:
            keys.append(key)
    return keys


def _key(item: object) -> Key | None:
    """Return a key that can verify signatures, or None for other keys."""
    import jwt  # slow to import; see `verify`

    if not isinstance(item, dict):
        return None
    fields = cast("dict[str, Any]", item)
    if not all(isinstance(fields.get(name, ""), str) for name in _TEXTS):
        return None
    if fields.get("kty") not in {"RSA", "EC"} or fields.get("use", "sig") != "sig":
        return None
    public_fields = {name: value for name, value in fields.items() if name != "d"}
    try:
        public = jwt.PyJWK(public_fields).key
    except Exception:  # noqa: BLE001 - PyJWT and cryptography do not list what odd numbers make them raise
        return None
    if fields["kty"] == "RSA" and public.key_size < _RSA_BITS_MIN:
        return None
    return Key(fields.get("kid", ""), fields["kty"], fields.get("alg", ""), public)


def verify(token: str, keys: Sequence[Key], rules: TokenRules, now_ms: int) -> VerifiedToken:
    """Verify a token. Raises AuthenticationFailed.

    The signature is checked before PyJWT decodes the claims, because decoding is slow: it took 36
    ms for a forged token of 467 KB.
    """
    import jwt  # importing this takes a tenth of a broker's startup CPU time, and is rarely needed

    signed, _, signature = token.rpartition(".")
    header = _header(token.partition(".")[0])
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise AuthenticationFailed(f"the token has the algorithm {str(algorithm)[:20]!r}")
    if "crit" in header:
        raise AuthenticationFailed("the token has critical extensions")
    key = _find(keys, header.get("kid"), algorithm)
    try:
        verifier = jwt.get_algorithm_by_name(algorithm)
        if not verifier.verify(signed.encode(), key.public, _decoded(signature)):
            raise AuthenticationFailed("the token is not valid: its signature is wrong")
        claims = jwt.decode(
            token,
            key.public,
            algorithms=[algorithm],
            options={
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_aud": False,
                "verify_iss": False,
                "verify_sub": False,
                "verify_jti": False,
            },
        )
    except AuthenticationFailed:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a library raises about a token refuses it
        raise AuthenticationFailed(f"the token is not valid: {error}") from None
    return _checked(claims, rules, now_ms)


def _header(segment: str) -> dict[str, Any]:
    """Decode the header. Raises AuthenticationFailed."""
    if len(segment) > _HEADER_CHARACTERS_MAX:
        text = f"its header has {len(segment)} characters, but at most {_HEADER_CHARACTERS_MAX} are"
        raise AuthenticationFailed(f"the token is malformed: {text} allowed")
    try:
        header = json.loads(_decoded(segment))
        if not isinstance(header, dict):
            raise TypeError("its header is not a JSON object")
    except (ValueError, TypeError, RecursionError) as error:
        raise AuthenticationFailed(f"the token is malformed: {error}") from None
    return cast("dict[str, Any]", header)


def _decoded(segment: str) -> bytes:
    """Decode a part of the token. Raises ValueError."""
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def _find(keys: Sequence[Key], key_id: object, algorithm: str) -> Key:
    fitting = [
        key
        for key in keys
        if key.type == _KEY_TYPES[algorithm[:2]] and key.algorithm in {"", algorithm}
    ]
    if key_id is None and len(fitting) == 1:
        return fitting[0]
    for key in fitting:
        if key_id is not None and key.key_id == key_id:
            return key
    raise UnknownKey("the token is signed by an unknown key")


def _checked(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> VerifiedToken:
    expires_ms = _time_ms(claims, "exp")
    if now_ms >= expires_ms + rules.skew_ms:
        raise AuthenticationFailed("the token has expired")
    if _time_ms(claims, "iat") > now_ms + rules.skew_ms:
        raise AuthenticationFailed("the token was issued in the future")
    if "nbf" in claims and _time_ms(claims, "nbf") > now_ms + rules.skew_ms:
        raise AuthenticationFailed("the token is not valid yet")
    _check_audience(claims.get("aud"), rules.audiences)
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise AuthenticationFailed("the token was not issued by the configured issuer")
    _check_scopes(claims.get(rules.scope_claim, ""), rules.required_scopes)
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip() or len(user) > _USER_CHARACTERS_MAX:
        raise AuthenticationFailed(f"the token has no {rules.user_claim}")
    if not _is_unicode(user):
        raise AuthenticationFailed(f"the {rules.user_claim} of the token is not Unicode")
    return VerifiedToken(user, expires_ms)


def _is_unicode(text: str) -> bool:
    """Return whether a JSON string can be encoded. It may contain a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_audience(given: object, wanted: Sequence[str]) -> None:
    """Check the audience. A token for another audience is rejected, even if no audience is
    required.
    """
    if given is None and not wanted:
        return
    named = [given] if isinstance(given, str) else given
    if not _are_texts(named) or not set(cast("list[str]", named)) & set(wanted):
        raise AuthenticationFailed("the token is for another audience")


def _check_scopes(given: object, required: Sequence[str]) -> None:
    """Check that the token has all required scopes. given: a string of scopes separated by spaces,
    or a list.
    """
    scopes = given.split(" ") if isinstance(given, str) else given
    if not _are_texts(scopes):
        raise AuthenticationFailed("the scope of the token is malformed")
    missing = [scope for scope in required if scope not in cast("list[str]", scopes)]
    if missing:
        raise ScopeMissing(missing, required)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, str) for item in cast("list[object]", value)
    )


def _time_ms(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationFailed(f"the token has no {name} claim")
    if not -_TIME_MAX_S <= value <= _TIME_MAX_S:
        raise AuthenticationFailed(f"the time {name} of the token is too far away")
    return int(value * 1_000)
