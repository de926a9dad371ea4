"""Read the security settings in a client properties file, like Kafka's tools.

The names are librdkafka's; Java's `sasl.jaas.config` and PEM stores are equivalent, and OAUTHBEARER
supports the names of both (`_tokens`). Other properties are ignored, because files are shared with
other clients; misspelled ones are rejected.
"""

import re
import ssl
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from penstock.base.client_tls import client_tls
from penstock.base.listeners import SecurityProtocol
from penstock.deploy.clients.assertions import find_assertion
from penstock.deploy.clients.bearer_tokens import TokenSource
from penstock.deploy.clients.profiles import current_profile
from penstock.deploy.errors import UsageError
from penstock.protocol.sasl.login import SaslLogin
from penstock.protocol.sasl.mechanisms import MECHANISMS, OAUTHBEARER
from penstock.protocol.sasl.nonce import new_nonce

_OAUTH: Final = "sasl.oauthbearer."
_JAAS: Final = re.compile(
    r'\b(username|password|clientId|clientSecret|scope)\s*=\s*"((?:\\.|[^"\\])*)"'
)
_NAMES: Final = (
    "security.protocol",
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.jaas.config"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
    *("ssl.keystore.location", "ssl.truststore.location"),
    "ssl.endpoint.identification.algorithm",
)
_MISSPELLED: Final = 0.91
"""Similarity above which an unknown name is considered misspelled. Any two names of Kafka or
librdkafka are less similar.
"""
_PROPERTY: Final = re.compile(r"\s*([^\s=:#!]+)\s*[=:]\s*(.*?)\s*")


@dataclass(frozen=True, slots=True, repr=False)
class ClientSecurity:
    """Connection security settings. Empty strings mean unset. tokens: source of OAUTHBEARER
    tokens.
    """

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    mechanism: str = ""
    username: str = ""
    password: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = ""
    checks_host: bool = True
    tokens: TokenSource | None = None

    def login(self) -> SaslLogin | None:
        """Return a new login, with a new token for OAUTHBEARER, or None without SASL. Raises
        KafkaFailed.
        """
        if not self.protocol.has_sasl:
            return None
        secret = self.tokens.token() if self.tokens is not None else self.password
        return SaslLogin(self.mechanism, self.username, secret, nonce=new_nonce())

    @property
    def who(self) -> str:
        """Return a description of the user, for messages."""
        if self.tokens is None:
            return f"user {self.username!r}"
        return f"the client with a token from {self.tokens.url}"

    def redacted(self) -> "ClientSecurity":
        """Return the settings for display, without the passwords."""
        return replace(
            self,
            password="***" if self.password else "",
            key_password="***" if self.key_password else "",
        )

    def properties(self) -> dict[str, str]:
        """Return the properties of librdkafka. With a token in a file, the only one is `oauth_cb`,
        which is not a string.
        """
        given = {
            "security.protocol": self.protocol.value,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "ssl.key.password": self.key_password,
            "ssl.endpoint.identification.algorithm": "" if self.checks_host else "none",
        }
        if self.protocol is SecurityProtocol.PLAINTEXT:
            return {}
        if self.tokens is not None and not self.tokens.is_file:
            given |= {
                f"{_OAUTH}method": "oidc",
                f"{_OAUTH}token.endpoint.url": self.tokens.url,
                f"{_OAUTH}client.id": self.tokens.client_id,
                f"{_OAUTH}client.secret": self.tokens.client_secret,
                f"{_OAUTH}scope": self.tokens.scope,
                "https.ca.location": self.tokens.ca,
            }
            if self.tokens.assertion is not None:
                given |= self.tokens.assertion.properties()
        return {name: value for name, value in given.items() if value}

    def tls(self) -> ssl.SSLContext | None:
        """Return a context for connections, or None without TLS. Raises UsageError."""
        if not self.protocol.has_tls:
            return None
        try:
            context = client_tls(self.ca)
            context.check_hostname = self.checks_host
            if self.certificate:
                context.load_cert_chain(
                    self.certificate, self.key or None, lambda: self.key_password
                )
        except (OSError, ValueError) as error:
            files = ", ".join(filter(None, (self.ca, self.certificate, self.key)))
            raise UsageError(f"TLS cannot use the PEM files {files}: {error}") from None
        return context


PLAINTEXT: Final = ClientSecurity()
_current: ContextVar[ClientSecurity | None] = ContextVar("client_security", default=None)
_file: ContextVar[Path | None] = ContextVar("client_security_file", default=None)


def current_security() -> ClientSecurity:
    """Return the security settings of this command: the selected ones or, if there are none, the
    settings of the profile. Raises UsageError if the file of the profile cannot be read.
    """
    chosen = _current.get()
    if chosen is not None:
        return chosen
    path = current_profile().profile.command_config
    return read_file(Path(path)) if path else PLAINTEXT


def is_chosen() -> bool:
    """Return True if an option, a variable or a profile contains security settings."""
    return _current.get() is not None or bool(current_profile().profile.command_config)


def chosen_file() -> Path | None:
    """Return the file of --command-config, or None."""
    return _file.get()


def use(security: ClientSecurity) -> None:
    """Use these security settings for the clients of this command."""
    _current.set(security)


def use_file(path: Path) -> None:
    """Use the security settings in a file for the clients of this command. Raises UsageError."""
    use(read_file(path))
    _file.set(path)


def read_file(path: Path) -> ClientSecurity:
    """Read a client properties file. Raises UsageError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"--command-config {path}: {reason}") from None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"--command-config {path}: {error}") from None


def parse(text: str) -> ClientSecurity:
    """Read client properties. Raises ValueError, whose message never contains a secret."""
    given = dict(_properties(text))
    _check_names(given)
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in SecurityProtocol.__members__:
        allowed = ", ".join(SecurityProtocol)
        raise ValueError(f"security.protocol={protocol!r} is not allowed: one of {allowed}")
    jaas = dict(_JAAS.findall(given.get("sasl.jaas.config", "")))
    keystore = given.get("ssl.keystore.location", "")
    found = ClientSecurity(
        SecurityProtocol(protocol),
        given.get("sasl.mechanism", given.get("sasl.mechanisms", "")),
        given.get("sasl.username", _unquoted(jaas.get("username", ""))),
        given.get("sasl.password", _unquoted(jaas.get("password", ""))),
        given.get("ssl.ca.location", given.get("ssl.truststore.location", "")),
        given.get("ssl.certificate.location", keystore),
        given.get("ssl.key.location", keystore),
        given.get("ssl.key.password", ""),
        given.get("ssl.endpoint.identification.algorithm", "https") == "https",
    )
    if found.protocol.has_sasl and found.mechanism == OAUTHBEARER:
        return replace(found, username="", password="", tokens=_tokens(given, jaas))
    if found.protocol.has_sasl:
        if found.mechanism not in MECHANISMS:
            allowed = ", ".join(MECHANISMS)
            raise ValueError(f"sasl.mechanism={found.mechanism!r} is not allowed: one of {allowed}")
        if not (found.username and found.password):
            raise ValueError("sasl.username and sasl.password are missing (or sasl.jaas.config)")
    return found


def _check_names(given: Iterable[str]) -> None:
    """Raise ValueError for a misspelled property. Other unknown properties are ignored, because
    they may be for other clients that read the same file.
    """
    for name in given:
        near = get_close_matches(name, _NAMES, n=1, cutoff=_MISSPELLED)
        if near and name not in _NAMES:
            raise ValueError(f"property {name!r} is not known: did you mean {near[0]}?")


def _tokens(given: Mapping[str, str], jaas: Mapping[str, str]) -> TokenSource:
    """Return the source of tokens, from the properties of Kafka 4.2, librdkafka, or Kafka's login
    module in older releases. Raises ValueError.
    """

    def first(*names: str, option: str) -> str:
        texts = (given.get(_OAUTH + name, "") for name in names)
        return next(filter(None, texts), "") or _unquoted(jaas.get(option, ""))

    found = TokenSource(
        given.get(f"{_OAUTH}token.endpoint.url", ""),
        first("client.credentials.client.id", "client.id", option="clientId"),
        first("client.credentials.client.secret", "client.secret", option="clientSecret"),
        first("scope", option="scope"),
        given.get("https.ca.location", ""),
        find_assertion(given),
    )
    found.check()
    return found


def _properties(text: str) -> Mapping[str, str]:
    """Return the properties. A backslash at the end of a line continues it."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not name=value")
        found[match[1]] = match[2]
    return found


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
