"""Write connection settings in the format of each client library.

Invariant: pure. The order of settings is: address, protocol, SASL, TLS.
"""

from typing import Final

from penstock.deploy.clients.bearer_tokens import TokenSource
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.errors import UsageError

_LOGIN_MODULES: Final = {
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java(security: ClientSecurity) -> dict[str, str]:
    """Return the properties of Kafka's Java clients and tools, which `--command-config` also
    accepts.
    """
    found = {"security.protocol": security.protocol.value}
    if security.protocol.has_sasl:
        module = _LOGIN_MODULES[security.mechanism.partition("-")[0]]
        login = f" username={_jaas(security.username)} password={_jaas(security.password)}"
        found["sasl.mechanism"] = security.mechanism
        if security.tokens is not None:
            found |= _java_tokens(security.tokens)
            login = ""
        found["sasl.jaas.config"] = f"{module} required{login};"
    if security.protocol.has_tls:
        found |= _java_tls(security)
    return found


def _java_tokens(tokens: TokenSource) -> dict[str, str]:
    """Return the OAUTHBEARER properties with the names of Kafka 4.2."""
    found = {
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer"
        ".OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": tokens.url,
        "sasl.oauthbearer.client.credentials.client.id": tokens.client_id,
        "sasl.oauthbearer.client.credentials.client.secret": tokens.client_secret,
        "sasl.oauthbearer.scope": tokens.scope,
    }
    if tokens.assertion is not None:
        found |= tokens.assertion.java_properties()
    return {name: value for name, value in found.items() if value}


def _java_tls(security: ClientSecurity) -> dict[str, str]:
    found: dict[str, str] = {}
    if security.ca:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca}
    if security.certificate:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": security.certificate}
    if security.key_password:
        found["ssl.key.password"] = security.key_password
    if not security.checks_host:
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def kafka_python(security: ClientSecurity) -> dict[str, object]:
    """Return the keyword arguments of kafka-python."""
    found = aiokafka(security)
    if security.protocol.has_tls:
        given = {
            "ssl_cafile": security.ca,
            "ssl_certfile": security.certificate,
            "ssl_keyfile": security.key,
            "ssl_password": security.key_password,
        }
        found |= {name: value for name, value in given.items() if value}
        if not security.checks_host:
            found["ssl_check_hostname"] = False
    return found


def aiokafka(security: ClientSecurity) -> dict[str, object]:
    """Return the keyword arguments of aiokafka, without `ssl_context`, which `aiokafka_tls`
    creates.
    """
    found: dict[str, object] = {"security_protocol": security.protocol.value}
    if security.tokens is not None:
        raise UsageError(
            "kafka-python and aiokafka need a token provider class in the program: choose a "
            "client of librdkafka or Java, or another sasl.mechanism"
        )
    if security.protocol.has_sasl:
        found |= {
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": security.password,
        }
    return found


def aiokafka_tls(security: ClientSecurity) -> dict[str, object]:
    """Return the keyword arguments of `aiokafka.helpers.create_ssl_context`; none without TLS."""
    given = {
        "cafile": security.ca,
        "certfile": security.certificate,
        "keyfile": security.key,
        "password": security.key_password,
    }
    if not security.protocol.has_tls:
        return {}
    return {name: value for name, value in given.items() if value}


def properties_text(properties: dict[str, str]) -> str:
    """Return the lines of a properties file."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _jaas(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
