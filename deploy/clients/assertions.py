"""Create the assertions that clients use to request tokens from an identity provider.

Source: RFC 7523; KIP-1139; Kafka `DefaultAssertionCreator`, `LayeredAssertionJwtTemplate`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
RETRIEVER: Final = "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
"""Kafka's class that requests tokens with assertions."""

ALGORITHMS: Final = ("RS256", "ES256")
FILE_BYTES_MAX: Final = 1 << 20
_OAUTH: Final = "sasl.oauthbearer."
_TEXT_CLAIMS: Final = ("sub", "iss", "aud")
_EXP_S: Final = 300
_NBF_S: Final = 60
_VALID_S_MAX: Final = 86_400


# An assertion is a JWT that the client signs with its private key, instead of sending a secret.
# Invariants: the files are read for each assertion, so a new key does not require a restart. Error
# messages never contain keys or assertions.
@dataclass(frozen=True, slots=True, repr=False)
class Assertion:
    """How to create an assertion.

    file: contains a signed assertion, in which case the other fields are ignored. claims: `sub`,
    `iss`, `aud`. template_file: JSON with the objects `header` and `payload`, whose members
    override `claims`. exp_s, nbf_s: for how many seconds after and before now it is valid. has_id:
    whether to include a `jti` claim.
    """

    file: str = ""
    key_file: str = ""
    key_passphrase: str = ""
    algorithm: str = ALGORITHMS[0]
    template_file: str = ""
    claims: tuple[tuple[str, str], ...] = ()
    exp_s: int = _EXP_S
    nbf_s: int = _NBF_S
    has_id: bool = False

    def make(self, now_s: int, new_id: Callable[[], str]) -> str:
        """Return an assertion. now_s: seconds since 1970. Raises OSError, ValueError."""
        if self.file:
            return _text(self.file).strip()
        template = self._template()
        header = template["header"] | {"alg": self.algorithm, "typ": "JWT"}
        claims = dict(self.claims) | template["payload"]
        claims |= {"iat": now_s, "exp": now_s + self.exp_s, "nbf": now_s - self.nbf_s}
        if self.has_id:
            claims["jti"] = new_id()
        return self._sign(claims, header)

    def _sign(self, claims: dict[str, Any], header: dict[str, Any]) -> str:
        # Imported on demand, because both together take 60 ms, which would slow down every command.
        import jwt
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        text = _text(self.key_file)
        try:
            key: Any = load_pem_private_key(text.encode(), self.key_passphrase.encode() or None)
            return jwt.encode(claims, key, self.algorithm, header)
        except (ValueError, TypeError, UnsupportedAlgorithm, jwt.PyJWTError):
            # The error messages of these libraries may contain the key.
            raise ValueError(
                f"{self.key_file} has no private key in PEM for {self.algorithm},"
                " or its passphrase is wrong"
            ) from None

    def _template(self) -> dict[str, dict[str, Any]]:
        if not self.template_file:
            return {"header": {}, "payload": {}}
        try:
            found: Any = json.loads(_text(self.template_file))
            return {name: dict(found.get(name, {})) for name in ("header", "payload")}
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ValueError(
                f'{self.template_file} is not JSON such as {{"header": {{}}, "payload": {{}}}}'
            ) from None

    def properties(self) -> dict[str, str]:
        """Return the properties for librdkafka."""
        return self._properties("jwt.template.file") | {f"{_OAUTH}grant.type": GRANT}

    def java_properties(self) -> dict[str, str]:
        """Return the properties for Kafka 4.2."""
        return self._properties("template.file") | {f"{_OAUTH}jwt.retriever.class": RETRIEVER}

    def _properties(self, template: str) -> dict[str, str]:
        given = (
            {"file": self.file}
            if self.file
            else {
                "algorithm": self.algorithm,
                "private.key.file": self.key_file,
                "private.key.passphrase": self.key_passphrase,
                template: self.template_file,
                **{f"claim.{name}": text for name, text in self.claims},
                "claim.exp.seconds": str(self.exp_s),
                "claim.nbf.seconds": str(self.nbf_s),
                "claim.jti.include": str(self.has_id).lower(),
            }
        )
        return {f"{_OAUTH}assertion.{name}": text for name, text in given.items() if text}


def find_assertion(given: Mapping[str, str]) -> Assertion | None:
    """Return the settings for creating assertions, from the properties of Kafka 4.2 or librdkafka,
    or None if the client obtains its tokens in another way. Raises ValueError, whose message never
    contains a secret.
    """
    if not (
        given.get(f"{_OAUTH}jwt.retriever.class") == RETRIEVER
        or given.get(f"{_OAUTH}grant.type") == GRANT
    ):
        return None

    def text(name: str, default: str = "") -> str:
        return given.get(f"{_OAUTH}assertion.{name}", default)

    def one_of(name: str, words: Sequence[str]) -> str:
        found = text(name, words[0])
        if found not in words:
            raise ValueError(
                f"{_OAUTH}assertion.{name}={found!r} is not allowed: one of {', '.join(words)}"
            )
        return found

    def seconds(name: str, default: int) -> int:
        found = text(name, str(default))
        if not (found.isascii() and found.isdecimal() and int(found) <= _VALID_S_MAX):
            raise ValueError(
                f"{_OAUTH}assertion.{name}={found!r} is not allowed: seconds, 0 to {_VALID_S_MAX}"
            )
        return int(found)

    if not (text("file") or text("private.key.file")):
        raise ValueError(
            f"{_OAUTH}assertion.private.key.file is missing: the PEM file of the key that signs"
            f" assertions (or {_OAUTH}assertion.file)"
        )
    return Assertion(
        text("file"),
        text("private.key.file"),
        text("private.key.passphrase"),
        one_of("algorithm", ALGORITHMS),
        text("template.file") or text("jwt.template.file"),
        tuple((name, found) for name in _TEXT_CLAIMS if (found := text(f"claim.{name}"))),
        seconds("claim.exp.seconds", _EXP_S),
        seconds("claim.nbf.seconds", _NBF_S),
        one_of("claim.jti.include", ("false", "true")) == "true",
    )


def _text(path: str) -> str:
    with Path(path).open(encoding="utf-8") as file:
        return file.read(FILE_BYTES_MAX)
