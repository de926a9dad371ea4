"""Client settings for a schema registry, as properties with the names of Confluent's clients:
`basic.auth.user.info=USER:PASSWORD`. The prefix `schema.registry.` may be omitted.
"""

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from penstock.base.client_tls import client_tls
from penstock.protocol.registry.bearer_tokens import BearerTokens
from penstock.protocol.registry.client import SchemaRegistry
from penstock.protocol.registry.http import is_header_value, opener, split_url
from penstock.protocol.registry.model import RegistrySettingInvalid, RegistryUrlInvalid

URL_VARIABLE: Final = "PENSTOCK_SCHEMA_REGISTRY"
CONFIG_VARIABLE: Final = "PENSTOCK_SCHEMA_REGISTRY_CONFIG"
TIMEOUT_MS_MAX: Final = 600_000
_PREFIX: Final = "schema.registry."
_NAMES: Final = {
    "url": "url",
    "basic.auth.user.info": "user_info",
    "bearer.auth.token": "token",
    "bearer.auth.issuer.endpoint.url": "token_url",
    "bearer.auth.client.id": "client_id",
    "bearer.auth.client.secret": "client_secret",
    "bearer.auth.scope": "scope",
    "bearer.auth.logical.cluster": "logical_cluster",
    "bearer.auth.identity.pool.id": "identity_pool",
    "ssl.ca.location": "ca",
    "ssl.truststore.location": "ca",
    "ssl.certificate.location": "certificate",
    "ssl.keystore.location": "certificate",
    "ssl.key.location": "key",
    "ssl.key.password": "key_password",
    "request.timeout.ms": "timeout_ms",
    "retry.ms": "retry_ms",
}
_ONLY: Final = {
    "basic.auth.credentials.source": ("USER_INFO", "URL"),
    "bearer.auth.credentials.source": ("STATIC_TOKEN", "OAUTHBEARER"),
    "ssl.truststore.type": ("PEM",),
    "ssl.keystore.type": ("PEM",),
}
"""The only supported values of some properties."""

_OAUTH: Final = "OAUTHBEARER"
_OAUTH_NEEDS: Final = (
    f"{_OAUTH} needs bearer.auth.issuer.endpoint.url, bearer.auth.client.id and"
    " bearer.auth.client.secret"
)
_CA_SETTING: Final = "ssl.ca.location"
_KAFKA: Final = "bootstrap.servers"
"""A file with this property is shared with Kafka clients, so its properties such as
`ssl.truststore.location` apply to brokers.
"""

_OWN: Final = (_PREFIX, "basic.auth.", "bearer.auth.")
_NUMBERS: Final = {"timeout_ms", "retry_ms"}
_PROPERTY: Final = re.compile(r"\s*([^\s=:#!]+)\s*[=:]\s*(.*?)\s*")


class RegistrySettings(Struct, frozen=True):
    """A registry and how to connect to it. Paths refer to PEM files on the machine that connects.
    retry_ms: how long to retry while the registry is unavailable.
    """

    url: str
    user_info: str = ""
    token: str = ""
    token_url: str = ""
    """The token endpoint, which issues tokens for `client_id` and `client_secret`."""
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    logical_cluster: str = ""
    identity_pool: str = ""
    """Identity pool, sent in a header to Confluent Cloud."""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = ""
    timeout_ms: int = 10_000
    retry_ms: int = 15_000

    def __repr__(self) -> str:
        """Omit the credentials."""
        return f"RegistrySettings({self.url.rpartition('@')[2]!r})"

    def connect(self) -> SchemaRegistry:
        """Return a client without sending any requests. Raise RegistrySettingInvalid."""
        if bool(self.token) + bool(self.token_url) + self._has_user > 1:
            raise RegistrySettingInvalid(
                "give a bearer token, a token endpoint, or a user with a password"
            )
        try:
            tls = client_tls(self.ca)
            if self.certificate:
                tls.load_cert_chain(self.certificate, self.key or None, lambda: self.key_password)
        except (OSError, ValueError) as error:
            files = ", ".join(filter(None, (self.ca, self.certificate, self.key)))
            why = error.reason if isinstance(error, ssl.SSLError) else error
            raise RegistrySettingInvalid(f"TLS cannot use the PEM files {files}: {why}") from None
        return SchemaRegistry(
            self.url,
            user_info=self.user_info,
            token=self.token,
            tokens=self._tokens(tls),
            headers=self._headers(),
            tls=tls,
            ca_setting=_CA_SETTING,
            timeout_s=self.timeout_ms / 1_000,
        )

    @property
    def _has_user(self) -> bool:
        return bool(self.user_info) or "@" in self.url

    def _tokens(self, tls: ssl.SSLContext) -> BearerTokens | None:
        given = (self.token_url, self.client_id, self.client_secret)
        if not any((*given, self.scope)):
            return None
        if not all(given):
            raise RegistrySettingInvalid(_OAUTH_NEEDS)
        try:
            split_url(self.token_url)
        except RegistryUrlInvalid as error:
            raise RegistrySettingInvalid(f"bearer.auth.issuer.endpoint.url: {error}") from None
        return BearerTokens(
            *given,
            self.scope,
            open_request=opener(tls).open,
            ca_setting=_CA_SETTING,
            timeout_s=self.timeout_ms / 1_000,
        )

    def _headers(self) -> dict[str, str]:
        given = {
            "target-sr-cluster": self.logical_cluster,
            "Confluent-Identity-Pool-Id": self.identity_pool,
        }
        for name, value in given.items():
            if not is_header_value(value):
                raise RegistrySettingInvalid(f"the value of the header {name} is not printable")
        return {name: value for name, value in given.items() if value}


def registry_settings(given: Mapping[str, str], url: str = "") -> RegistrySettings | None:
    """Return the settings in these properties, or None if there is no URL. url: overrides the URL
    in the properties. Raise RegistrySettingInvalid, which contains no values of secrets.
    """
    found: dict[str, str | int] = {}
    is_shared, is_oauth = _KAFKA in given, False
    for full_name, value in given.items():
        if is_shared and not full_name.startswith(_OWN):
            continue
        name = full_name.removeprefix(_PREFIX)
        if name in _ONLY:
            if value.strip().upper() not in _ONLY[name]:
                raise RegistrySettingInvalid(
                    f"{full_name}={value!r} is not supported: {' or '.join(_ONLY[name])}"
                )
            is_oauth |= value.strip().upper() == _OAUTH
            continue
        if name not in _NAMES:
            raise RegistrySettingInvalid(
                f"property {full_name!r} is unknown: {', '.join(sorted(_NAMES))}"
            )
        found[_NAMES[name]] = _number(full_name, value) if _NAMES[name] in _NUMBERS else value
    if url:
        found["url"] = url
    if not found.get("url"):
        if found:
            raise RegistrySettingInvalid("the properties of a registry need schema.registry.url")
        return None
    if is_oauth and "token_url" not in found:
        raise RegistrySettingInvalid(_OAUTH_NEEDS)
    settings = RegistrySettings(**found)  # type: ignore[arg-type]
    settings.connect()
    return settings


def given_registry(given: str | Mapping[str, str]) -> RegistrySettings | None:
    """Return the settings in a URL or in properties. Raise RegistrySettingInvalid."""
    return registry_settings({}, given) if isinstance(given, str) else registry_settings(given)


def read_settings(path: Path | None, url: str = "") -> RegistrySettings | None:
    """Return the settings in a file of properties. Raise RegistrySettingInvalid."""
    if path is None:
        return registry_settings({}, url)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise RegistrySettingInvalid(f"{path}: {reason}") from None
    given: dict[str, str] = {}
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise RegistrySettingInvalid(f"{path}: line {number} is not name=value")
        given[match[1]] = match[2]
    return registry_settings(given, url)


def settings_of_environment(environ: Mapping[str, str] = os.environ) -> RegistrySettings | None:
    """Return the settings specified by environment variables. Raise RegistrySettingInvalid."""
    config = environ.get(CONFIG_VARIABLE, "")
    return read_settings(Path(config) if config else None, environ.get(URL_VARIABLE, ""))


def _number(name: str, value: str) -> int:
    if not value.strip().isdecimal() or int(value) > TIMEOUT_MS_MAX:
        raise RegistrySettingInvalid(f"{name}={value!r} is not 0 to {TIMEOUT_MS_MAX} milliseconds")
    return int(value)
