"""Translate security settings (PEM files, logins, host name verification) from the names and values
of Kafka's Java client to librdkafka.

Invariant: a setting either takes effect or causes an error. Java keystores (JKS), the default type,
are not supported. Source: Kafka `SslConfigs`, KIP-651; librdkafka `CONFIGURATION.md`.
"""

import re
from collections.abc import Mapping
from typing import Final

from penstock.lake.spark.errors import InvalidOption

NAMES: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.oauthbearer.assertion.template.file",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.token.endpoint.url",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.endpoint.identification.algorithm",
    }
)
"""The settings that `security_settings` translates; others are passed to librdkafka unchanged."""

_PEM: Final = "PEM"
_PKCS12: Final = "PKCS12"
_JAAS: Final = re.compile(
    r'\b(username|password|clientId|clientSecret|scope)\s*=\s*"((?:[^"\\]|\\.)*)"'
)
_JAAS_LOGIN: Final = re.compile(
    r"\s*\S*\.(PlainLoginModule|ScramLoginModule|OAuthBearerLoginModule)\s+required\b"
)
_BEARER_MODULE: Final = "OAuthBearerLoginModule"
_BEARER_OPTIONS: Final = {
    "clientId": "sasl.oauthbearer.client.credentials.client.id",
    "clientSecret": "sasl.oauthbearer.client.credentials.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_TOKEN_HANDLERS: Final = frozenset(
    {
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    }
)
"""Kafka's callback handlers that, like librdkafka, retrieve tokens from an endpoint."""


_GRANTS: Final = {
    "": "",
    "DefaultJwtRetriever": "",
    "ClientCredentialsJwtRetriever": "",
    "JwtBearerJwtRetriever": "urn:ietf:params:oauth:grant-type:jwt-bearer",
}
"""librdkafka's `sasl.oauthbearer.grant.type` by Kafka class; empty for the default."""


def security_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings for the given settings in NAMES. Raise InvalidOption."""
    found: dict[str, str] = {}
    if "sasl.jaas.config" in given:
        found |= _login(given["sasl.jaas.config"])
    found |= _token_endpoint(given)
    if location := given.get("ssl.truststore.location", "").strip():
        if _store_type(given, "truststore") != _PEM:
            raise _not_pem("truststore", "kafka.ssl.ca.location")
        found["ssl.ca.location"] = location
    if location := given.get("ssl.keystore.location", "").strip():
        kind = _store_type(given, "keystore")
        if kind == _PKCS12:
            found["ssl.keystore.location"] = location
        elif kind == _PEM:
            found |= {"ssl.certificate.location": location, "ssl.key.location": location}
        else:
            raise _not_pem("keystore", "kafka.ssl.certificate.location and kafka.ssl.key.location")
    if "ssl.endpoint.identification.algorithm" in given:
        text = given["ssl.endpoint.identification.algorithm"].strip()
        found["ssl.endpoint.identification.algorithm"] = text or "none"
    return found


def _token_endpoint(given: Mapping[str, str]) -> dict[str, str]:
    handler = given.get("sasl.login.callback.handler.class", "").strip()
    if handler and handler not in _TOKEN_HANDLERS:
        raise InvalidOption(
            "Kafka option 'sasl.login.callback.handler.class' is supported for Kafka's"
            f" {min(_TOKEN_HANDLERS, key=len)}: Java classes cannot be loaded"
        )
    url = given.get("sasl.oauthbearer.token.endpoint.url", "").strip()
    if not url:
        return {}
    if not url.startswith(("https:", "http:")):
        raise InvalidOption(
            "Kafka option 'sasl.oauthbearer.token.endpoint.url' is supported for the https://"
            " or http:// address of a token endpoint"
        )
    found = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": url}
    retriever = given.get("sasl.oauthbearer.jwt.retriever.class", "").strip()
    if retriever.rpartition(".")[2] not in _GRANTS:
        raise InvalidOption(
            "Kafka option 'sasl.oauthbearer.jwt.retriever.class' is supported for Kafka's"
            f" {', '.join(filter(None, _GRANTS))}: Java classes cannot be loaded"
        )
    if grant := _GRANTS[retriever.rpartition(".")[2]]:
        found["sasl.oauthbearer.grant.type"] = grant
    if template := given.get("sasl.oauthbearer.assertion.template.file", "").strip():
        found["sasl.oauthbearer.assertion.jwt.template.file"] = template
    return found


def _store_type(given: Mapping[str, str], store: str) -> str:
    return given.get(f"ssl.{store}.type", "JKS").strip().upper()


def _not_pem(store: str, instead: str) -> InvalidOption:
    return InvalidOption(
        f"Kafka option 'ssl.{store}.location' is supported for PEM files: set"
        f" kafka.ssl.{store}.type to PEM, or use {instead}"
    )


def _login(jaas: str) -> dict[str, str]:
    words = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS.findall(jaas)}
    module = _JAAS_LOGIN.match(jaas)
    if (
        module is not None
        and module[1] == _BEARER_MODULE
        and words.keys() <= _BEARER_OPTIONS.keys()
    ):
        return {_BEARER_OPTIONS[name]: value for name, value in words.items()}
    if module is None or words.keys() != {"username", "password"}:
        raise InvalidOption(
            "Kafka option 'sasl.jaas.config' is supported for PlainLoginModule and"
            " ScramLoginModule with username and password, and OAuthBearerLoginModule with"
            " clientId, clientSecret and scope, all in double quotes; otherwise use"
            " kafka.sasl.username and kafka.sasl.password"
        )
    return {"sasl.username": words["username"], "sasl.password": words["password"]}
