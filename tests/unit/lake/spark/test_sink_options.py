"""Write options: names, checks and messages are those of Kafka's Spark connector."""

import pytest

from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.sink.options import WriteOptions, parse_write, write_warnings

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
ONCE = {**SERVERS, "exactlyOnce": "true", "store": "s3://b/p"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def parsed(options: dict[str, str], *, streaming: bool = False) -> WriteOptions:
    return parse_write(options, streaming=streaming, overwrite=False)


@pytest.mark.parametrize(("options", "text"), [
    ({}, "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"),
    ({"kafka.key.serializer": "x"},
     "Kafka option 'key.serializer' is not supported as keys are serialized with "
     "ByteArraySerializer."),
    ({"kafka.value.serializer": "x"},
     "Kafka option 'value.serializer' is not supported as values are"),
    ({**SERVERS, "kafka.Transactional.id": "x"},
     "'transactional.id' is not supported: set the option exactlyOnce"),
    ({**SERVERS, "kafka.partitioner.class": "x"},
     "Java classes cannot be loaded: use kafka.partitioner"),
    ({**SERVERS, "kafka.buffer.memory": "much"},
     "kafka.buffer.memory must be a non-negative number, got 'much'"),
    ({**SERVERS, "kafka.max.block.ms": "-1"},
     "kafka.max.block.ms must be a non-negative number, got '-1'"),
    ({**SERVERS, "kafka.sasl.jaas.config": "x required;"},
     "'sasl.jaas.config' is supported for PlainLoginModule and"),
    ({**SERVERS, "kafka.sasl.jaas.config": f'{PLAIN} username="u";'},
     "clientSecret and scope, all in double quotes"),
    ({**SERVERS, "kafka.sasl.login.callback.handler.class": "my.Handler"},
     "'sasl.login.callback.handler.class' is supported for Kafka's"),
    ({**SERVERS, "kafka.sasl.oauthbearer.token.endpoint.url": "file:///token"},
     "'sasl.oauthbearer.token.endpoint.url' is supported for the https"),
    ({**SERVERS, "kafka.sasl.oauthbearer.token.endpoint.url": "https://id.example",
      "kafka.sasl.oauthbearer.jwt.retriever.class": "com.example.Mine"},
     "'sasl.oauthbearer.jwt.retriever.class' is supported for Kafka's DefaultJwtRetriever, "),
    ({**SERVERS, "kafka.ssl.truststore.location": "/t.jks"},
     "set kafka.ssl.truststore.type to PEM, or use kafka.ssl.ca.location"),
    ({**SERVERS, "kafka.ssl.keystore.location": "/t.jks", "kafka.ssl.keystore.type": "JKS"},
     "set kafka.ssl.keystore.type to PEM, or use kafka.ssl.certificate.location"),
    ({**SERVERS, "exactlyOnce": "yes"},
     'exactlyOnce must be true or false. For input string: "yes"'),
    ({**SERVERS, "exactlyOnce": "true"}, "exactlyOnce needs the option 'store'"),
    ({**ONCE, "kafka.acks": "1"}, "exactlyOnce needs an idempotent producer"),
    ({**SERVERS, "txnAppId": "a", "txnVersion": "1"},
     "txnAppId, txnVersion and exactlyOnce=true must be used together"),
    ({**ONCE, "txnAppId": "a"}, "must be used together"),
    ({**ONCE, "txnAppId": "a b", "txnVersion": "1"},
     "txnAppId must be 1 to 128 characters from .*, got 'a b'"),
    ({**ONCE, "txnAppId": "a", "txnVersion": "-1"},
     "txnVersion must be a non-negative number .*, got '-1'"),
])  # fmt: skip
def test_invalid_options_are_rejected(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        parsed(options)


def test_java_settings_for_tokens_are_translated() -> None:
    package = "org.apache.kafka.common.security.oauthbearer"
    found = parsed(
        {
            **SERVERS,
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
            "kafka.sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
            "kafka.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required"
            ' clientId="c" clientSecret="s" scope="a b";',
        }
    )
    assert {name: value for name, value in found.producer.items() if name.startswith("sasl.")} == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.credentials.client.id": "c",
        "sasl.oauthbearer.client.credentials.client.secret": "s",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.scope": "a b",
        "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
    }


def test_java_settings_for_assertions_are_translated() -> None:
    oauth = "kafka.sasl.oauthbearer"
    found = parsed(
        {
            **SERVERS,
            "kafka.sasl.mechanism": "OAUTHBEARER",
            f"{oauth}.token.endpoint.url": "https://id.example/token",
            f"{oauth}.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer"
            ".JwtBearerJwtRetriever",
            f"{oauth}.assertion.private.key.file": "/key.pem",
            f"{oauth}.assertion.template.file": "/template.json",
        }
    )
    settings = {name: value for name, value in found.producer.items() if name.startswith("sasl.")}
    assert settings == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.assertion.jwt.template.file": "/template.json",
        "sasl.oauthbearer.assertion.private.key.file": "/key.pem",
        "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
    }


def test_overwrite_mode_is_rejected_but_complete_mode_is_accepted() -> None:
    with pytest.raises(InvalidOption, match="Save mode Overwrite not allowed for Kafka"):
        parse_write(SERVERS, streaming=False, overwrite=True)
    assert parse_write(SERVERS, streaming=True, overwrite=True).topic is None


def test_a_stream_rejects_explicit_batch_names() -> None:
    with pytest.raises(
        InvalidOption, match="a streaming query identifies its micro-batches itself"
    ):
        parsed({**ONCE, "txnAppId": "a", "txnVersion": "1"}, streaming=True)


def test_java_settings_have_the_same_effect() -> None:
    found = parsed(
        {
            **SERVERS,
            "TOPIC": " flights ",
            "kafka.buffer.memory": "1048576",
            "kafka.max.request.size": "2000000",
            "kafka.linger.ms": "20",
            "kafka.send.buffer.bytes": "65536",
            "kafka.max.block.ms": "5000",
            "kafka.delivery.timeout.ms": "9000",
            "kafka.compression.type": "zstd",
            "kafka.sasl.jaas.config": f'{PLAIN} username="u" password="p\\"w";',
            "kafka.metric.reporters": "x",
        }
    )
    assert found.producer == {
        "acks": "all",
        "bootstrap.servers": "localhost:9092",
        "client.id": "penstock-spark",
        "compression.type": "zstd",
        "delivery.timeout.ms": "9000",
        "enable.idempotence": "true",
        "linger.ms": "20",
        "message.max.bytes": "2000000",
        "partitioner": "murmur2_random",
        "queue.buffering.max.kbytes": "1024",
        "sasl.password": 'p"w',
        "sasl.username": "u",
        "socket.send.buffer.bytes": "65536",
    }
    assert (found.topic, found.max_block_ms, found.delivery_timeout_ms) == ("flights", 5_000, 9_000)
    assert not found.exactly_once
    assert found.store == ""


SECURITY = {
    "security.protocol": "SSL",
    "ssl.key.password": "of the key",
}


@pytest.mark.parametrize(("java", "librdkafka"), [
    ({"ssl.truststore.location": "/ca.pem", "ssl.truststore.type": "PEM"},
     {"ssl.ca.location": "/ca.pem"}),
    ({"ssl.keystore.location": "/me.pem", "ssl.keystore.type": "pem"},
     {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem"}),
    ({"ssl.keystore.location": "/me.p12", "ssl.keystore.type": "PKCS12"},
     {"ssl.keystore.location": "/me.p12"}),
    ({"ssl.keystore.key": "K", "ssl.keystore.certificate.chain": "C", "ssl.keystore.type": "PEM"},
     {"ssl.key.pem": "K", "ssl.certificate.pem": "C"}),
    ({"ssl.truststore.certificates": "CA"}, {"ssl.ca.pem": "CA"}),
    ({"ssl.endpoint.identification.algorithm": ""},
     {"ssl.endpoint.identification.algorithm": "none"}),
])  # fmt: skip
def test_java_security_settings_have_the_same_effect(
    java: dict[str, str], librdkafka: dict[str, str]
) -> None:
    given = {f"kafka.{name}": value for name, value in (SECURITY | java).items()}
    plain = parsed(SERVERS).producer
    assert parsed(SERVERS | given).producer == {**plain, **SECURITY, **librdkafka}


@pytest.mark.parametrize(("options", "idempotent"), [
    ({}, "true"),
    ({"kafka.acks": "-1"}, "true"),
    ({"kafka.acks": "1"}, "false"),
    ({"kafka.retries": "0"}, "false"),
    ({"kafka.max.in.flight.requests.per.connection": "6"}, "false"),
    ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "true"),
])  # fmt: skip
def test_producers_are_idempotent_unless_options_conflict_with_it(
    options: dict[str, str], idempotent: str
) -> None:
    assert parsed(SERVERS | options).producer["enable.idempotence"] == idempotent


def test_exactly_once_options_are_parsed() -> None:
    found = parsed({**ONCE, "txnAppId": "copy", "txnVersion": "17"})
    assert (found.exactly_once, found.store, found.write_name, found.write_version) == (
        True,
        "s3://b/p",
        "copy",
        17,
    )
    assert found.producer["transaction.timeout.ms"] == "900000"
    assert (
        parsed({**ONCE, "kafka.transaction.timeout.ms": "60000"}).producer["transaction.timeout.ms"]
        == "60000"
    )


def test_options_without_effect_cause_warnings() -> None:
    assert write_warnings(
        {
            **SERVERS,
            "topics": "a",
            "checkpointLocation": "c",
            "kafka.metric.reporters": "x",
            "subscribe": "a",
        }
    ) == [
        "options that the producer does not have: kafka.metric.reporters",
        "unknown option topics: did you mean topic?",
    ]
