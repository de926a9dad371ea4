"""Translate security settings from the names and values of Kafka's Java client to those of
librdkafka: PEM files, logins, and the check of host names.

Invariant: a setting takes effect or an error names it. Java's keystores (JKS) cannot be read, and
they are Java's default where no type is given. Source: Kafka `SslConfigs`, KIP-651; librdkafka
`CONFIGURATION.md`.
"""

import re
from collections.abc import Mapping
from typing import Final

from lake.spark.errors import InvalidOption

NAMES: Final = frozenset(
    {
        "sasl.jaas.config",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.endpoint.identification.algorithm",
    }
)
"""The settings that `security_settings` translates; librdkafka takes the others as they are."""

_PEM: Final = "PEM"
_PKCS12: Final = "PKCS12"
_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_JAAS_LOGIN: Final = re.compile(r"\s*\S*\.(PlainLoginModule|ScramLoginModule)\s+required\b")


def security_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings for those of NAMES. Raise InvalidOption."""
    found: dict[str, str] = {}
    if "sasl.jaas.config" in given:
        found |= _login(given["sasl.jaas.config"])
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


def _store_type(given: Mapping[str, str], store: str) -> str:
    return given.get(f"ssl.{store}.type", "JKS").strip().upper()


def _not_pem(store: str, instead: str) -> InvalidOption:
    return InvalidOption(
        f"Kafka option 'ssl.{store}.location' is supported for PEM files: set"
        f" kafka.ssl.{store}.type to PEM, or use {instead}"
    )


def _login(jaas: str) -> dict[str, str]:
    words = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS.findall(jaas)}
    if _JAAS_LOGIN.match(jaas) is None or words.keys() != {"username", "password"}:
        raise InvalidOption(
            "Kafka option 'sasl.jaas.config' is supported for PlainLoginModule and"
            " ScramLoginModule with username and password in double quotes; otherwise use"
            " kafka.sasl.username and kafka.sasl.password"
        )
    return {"sasl.username": words["username"], "sasl.password": words["password"]}
