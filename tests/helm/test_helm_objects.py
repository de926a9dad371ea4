"""Check the objects that the chart renders: they are valid in Kubernetes with any values, their
pods are confined, and their addresses match.
"""

import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import kubernetes_validate
import pytest

from penstock.broker.config import BrokerConfig
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.callers import CallerRole
from penstock.controller.config import ControllerConfig
from penstock.deploy.node.config.exposure import exposures
from penstock.deploy.node.config.load import load
from penstock.stream.config import StreamConfig
from tests.support.chart import (
    CHART,
    NAMESPACE,
    Object,
    Pod,
    environment,
    helm,
    named,
    of_kind,
    pod_of,
    render,
    template,
)

DEV = CHART / "values-dev.yaml"
BUCKET = {"store.bucket": "records", "security.allowInsecure": True}
EXTERNAL = {
    "NODES": {"type": "NodePort", "port": 9094, "firstNodePort": 31001},
    "PUBLIC": {
        "type": "LoadBalancer",
        "port": 9095,
        "host": "broker-{id}.kafka.example.com",
        "advertisedPort": 443,
        "annotations": {
            "external-dns.alpha.kubernetes.io/hostname": "broker-{id}.kafka.example.com"
        },
        "sourceRanges": ["10.0.0.0/8"],
    },
    "OWN": {"type": "None", "port": 9096, "host": "{pod}.example.com"},
}
OWN_CONTAINER: Object = {
    "image": "busybox:1.36",
    "resources": {"limits": {"memory": "64Mi"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
EVERYTHING: Object = {
    **BUCKET,
    "externalListeners": EXTERNAL,
    "brokers.autoscaling.enabled": True,
    "brokers.autoscaling.network.enabled": True,
    "brokers.rack": "nodeLabel",
    "networkPolicy.enabled": True,
    "networkPolicy.clients": [{"namespaceSelector": {}}],
    "networkPolicy.monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    "monitoring.serviceMonitor.enabled": True,
    "monitoring.prometheusRule.enabled": True,
    "monitoring.dashboards.enabled": True,
    "store.credentials.existingSecret": "s3",
    "store.endpoint": "http://s3:8333",
    "serviceAccount.annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/penstock"},
    "nodeTls.controllerSecret": "controller-certificate",
    "nodeTls.brokerSecret": "broker-certificate",
    "controllers.extraEnv": [{"name": "TZ", "value": "UTC"}],
    "store.caSecret": "store-ca",
    "bindAddress": "[::]",
    "tableRunner": {
        "enabled": True,
        "warehouse": "s3://lake/tables?region=eu-west-1",
        "catalog": {
            "type": "rest",
            "uri": "https://catalog.example.com/v1",
            "properties": {"warehouse": "lake", "rest.sigv4-enabled": True},
        },
        "schemaRegistry": "https://registry.example.com",
        "extraArgs": ["--skip-lost"],
        "envFrom": [{"secretRef": {"name": "catalog"}}],
        "podLabels": {"team": "lake"},
        "extraVolumes": [{"name": "own", "emptyDir": {"sizeLimit": "1Mi"}}],
        "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
    },
    "topics": [{"name": "orders", "partitions": 3, "configs": {"retention.ms": 60000}}],
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "{{ .Release.Name }}-own"},
            "data": {"a": "b"},
        }
    ],
    **{
        f"{role}.{name}": value
        for role in ("brokers", "controllers")
        for name, value in {
            "envFrom": [{"secretRef": {"name": "more"}}],
            "extraVolumes": [{"name": "own", "emptyDir": {"sizeLimit": "1Mi"}}],
            "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
            "initContainers": [OWN_CONTAINER | {"name": "before"}],
            "sidecars": [OWN_CONTAINER | {"name": "beside"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
            ],
            "updateStrategy": {"type": "OnDelete"},
            "probes.startup": {"failureThreshold": 300},
        }.items()
    },
}
CUSTOM = {"ServiceMonitor", "PrometheusRule", "Certificate"}
NODE_TLS: Object = {"nodeTls": {"controllerSecret": "controller", "brokerSecret": "broker"}}
SECURE: Object = {
    "store.bucket": "records",
    "listener.security": "SASL_SSL",
    "externalListeners": {
        "PUBLIC": {**EXTERNAL["PUBLIC"], "security": "SSL"},
        "NODES": EXTERNAL["NODES"],
    },
    "config.broker": {"ssl.client.auth": "required"},
    "security.tls.certManager": {"enabled": True, "issuerRef": {"name": "clients"}},
    "security.sasl.usersSecret": "first-users",
    "security.acls": {
        "enabled": True,
        "superUsers": ["User:admin"],
        "first": [["--topic", "orders", "--principal", "User:shop", "--operation", "write"]],
    },
    "security.sasl.scramUsersSecret": "clerks",
    "nodeTls.certManager": {"enabled": True, "issuerRef": {"name": "nodes", "kind": "Issuer"}},
    "networkPolicy.enabled": True,
}


def matrix() -> Iterator[Object]:
    yield BUCKET
    yield EVERYTHING
    yield SECURE
    for replicas, anti_affinity, spread in itertools.product(
        (1, 3, 5), ("soft", "hard", "none"), ("soft", "hard", "none")
    ):
        yield {
            **BUCKET,
            "controllers.replicas": replicas,
            "controllers.antiAffinity": anti_affinity,
            "brokers.zoneSpread": spread,
            "brokers.podDisruptionBudget.enabled": replicas > 1,
        }
    for rack, name, moto in itertools.product(
        ("podLabel", "nodeLabel", "none"), ("", "kafka"), (False, True)
    ):
        yield {
            **BUCKET,
            "brokers.rack": rack,
            "fullnameOverride": name,
            "moto.enabled": moto,
            "networkPolicy.enabled": True,
        }


def check_valid(it: Object, kubernetes: str) -> None:
    _check_text(json.dumps(it), kubernetes)


@cache
def _check_text(text: str, kubernetes: str) -> None:
    """Check identical objects once: each check reads all Kubernetes schemas, 20 ms of CPU."""
    kubernetes_validate.validate(json.loads(text), kubernetes, strict=True)


def test_the_chart_passes_helm_lint() -> None:
    given = ("--set", "store.bucket=records,security.allowInsecure=true")
    for values in ([], ["-f", DEV]):
        helm("lint", "--strict", CHART, *given, *values)


@pytest.mark.parametrize(
    "values", list(matrix()), ids=lambda values: f"{crc32(json.dumps(values).encode()):08x}"
)
def test_every_object_is_valid(values: Object) -> None:
    objects = render(values)
    assert of_kind(objects, "StatefulSet")
    names = [(it["kind"], it["metadata"]["name"]) for it in objects]
    assert len(set(names)) == len(names)
    for it in objects:
        assert len(it["metadata"]["name"]) <= 63
        if it["kind"] not in CUSTOM:
            check_valid(it, "1.34")


def test_the_dev_profile_is_self_contained() -> None:
    objects = render({}, DEV)
    for it in objects:
        check_valid(it, "1.34")
    assert named(objects, "Deployment", "penstock-moto")
    assert {
        named(objects, "StatefulSet", f"penstock-{role}")["spec"]["replicas"]
        for role in ("broker", "controller")
    } == {1}
    broker = variables_of(objects, "broker", 0)
    assert (
        broker["PENSTOCK_STORE"]
        == f"s3://penstock?endpoint=http%3A%2F%2Fpenstock-moto.{NAMESPACE}.svc.cluster.local%3A9000"
    )
    assert broker["AWS_ACCESS_KEY_ID"]


def test_objects_are_valid_for_the_oldest_supported_kubernetes() -> None:
    for it in render(EVERYTHING, kubernetes="1.28.0"):
        if it["kind"] not in CUSTOM:
            check_valid(it, "1.28")
    assert "kubeVersion" in template(BUCKET, check=False, kubernetes="1.27.0").stderr


@pytest.mark.parametrize(
    "version", ["v1.28.0-eks-5e0fdde", "v1.31.0-eks-abc", "v1.33.5-gke.1080000", "v1.34.1+k3s1"]
)
def test_kubernetes_versions_of_platforms_are_accepted(version: str) -> None:
    """In version order, they come before the version without suffix, and some Helm releases compare
    them that way; hence the `-0` in Chart.yaml.
    """
    assert 'kubeVersion: ">=1.28.0-0"' in (CHART / "Chart.yaml").read_text()
    assert named(render(BUCKET, kubernetes=version), "StatefulSet", "penstock-broker")


def test_an_older_kubernetes_version_of_a_platform_is_rejected() -> None:
    refused = template(BUCKET, check=False, kubernetes="v1.27.16-eks-abc")
    assert "kubeVersion" in refused.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"security.allowInsecure": True}, "store.bucket is missing"),
        ({"store.bucket": "records"}, "the listener PLAINTEXT has no authentication"),
        ({"store.bucket": "records"}, "or security.allowInsecure=true to let everyone in"),
        (
            {**SECURE, "externalListeners": {"A": {**EXTERNAL["OWN"], "security": "PLAINTEXT"}}},
            "the listener A has no authentication: set externalListeners.A.security=SASL_SSL",
        ),
        ({**SECURE, "config.broker": {}}, "the listener PUBLIC (SSL) has no authentication"),
        (
            {
                **SECURE,
                "config.broker": {
                    "ssl.client.auth": "required",
                    "listener.name.public.ssl.client.auth": "none",
                },
            },
            "set ssl.client.auth or listener.name.public.ssl.client.auth: required",
        ),
        (
            {**BUCKET, "externalListeners": {"A": {**EXTERNAL["OWN"], "tlsSecret": "x"}}},
            "externalListeners.A.tlsSecret has no effect, because the listener is PLAINTEXT",
        ),
        (
            {
                **BUCKET,
                "externalListeners": {"A": {**EXTERNAL["OWN"], "saslMechanisms": ["PLAIN"]}},
            },
            "externalListeners.A.saslMechanisms has no effect, because the listener is PLAINTEXT",
        ),
        (
            {
                **SECURE,
                "externalListeners": {"A": {**EXTERNAL["OWN"], "saslMechanisms": ["PLAIN"]}},
                "config.broker": {"listener.name.a.sasl.enabled.mechanisms": "PLAIN"},
            },
            "externalListeners.A.saslMechanisms and listener.name.a.sasl.enabled.mechanisms in",
        ),
        (
            {**SECURE, "config.broker": {"listener.name.public.ssl.keystore.location": "x"}},
            "listener.name.public.ssl.keystore.location",
        ),
        ({**SECURE, "nodeTls.certManager.enabled": False}, "the controllers have no TLS"),
        ({**SECURE, "nodeTls.certManager": {"enabled": True}}, "certManager.issuerRef is missing"),
        ({**SECURE, "security.tls.certManager": {}}, "security.tls.secret is missing"),
        ({**SECURE, "security.tls.secret": "own"}, "exclude each other"),
        ({**SECURE, "security.sasl.usersSecret": ""}, "security.sasl.usersSecret is missing"),
        ({**SECURE, "security.acls.enabled": False}, "needs security.acls.enabled=true"),
        ({**SECURE, "listener.security": "TLS"}, "listener/security"),
        ({**SECURE, "config.broker": {"super.users": "User:me"}}, "super.users"),
        ({**BUCKET, "brokers.replica": 4}, "replica"),
        ({**BUCKET, "brokers.replicas": 0}, "minimum"),
        ({**BUCKET, "controllers.replicas": 4}, "a cluster begins with 1, 3 or 5"),
        ({**BUCKET, "config.broker": {"num.partitons": 3}}, "num.partitons"),
        ({**BUCKET, "config.broker": {"num.partitions": "three"}}, "num.partitions"),
        ({**BUCKET, "config.broker": {"advertised.listeners": "a:1"}}, "advertised.listeners"),
        ({**BUCKET, "externalListeners": {"public": EXTERNAL["OWN"]}}, "public"),
        (
            {**BUCKET, "externalListeners": {"NODES": {"type": "NodePort", "port": 9094}}},
            "firstNodePort is missing",
        ),
        (
            {**BUCKET, "externalListeners": {"PUBLIC": {"type": "LoadBalancer", "port": 9094}}},
            "host is missing",
        ),
        ({**BUCKET, "nodeTls.brokerSecret": "broker"}, "belong together: set both or neither"),
        (
            {**BUCKET, "brokers.autoscaling.enabled": True, "brokers.autoscaling.cpuPercent": 0},
            "needs a measure",
        ),
        ({**BUCKET, "fullnameOverride": "Kafka_1"}, "fullnameOverride"),
        (
            {**BUCKET, "brokers.podLabels": {"app.kubernetes.io/component": "x"}},
            "app.kubernetes.io/component",
        ),
        ({**BUCKET, "brokers.podLabels": {"team": "data platform"}}, "team"),
        ({**BUCKET, "commonLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name"),
        ({**BUCKET, "externalListeners": {"A__B": EXTERNAL["OWN"]}}, "A__B"),
        ({**BUCKET, "externalListeners": {"A_": EXTERNAL["OWN"]}}, "A_"),
        (
            {**BUCKET, "externalListeners": {"OWN": {**EXTERNAL["OWN"], "port": 9404}}},
            "externalListeners.OWN.port=9404 is taken by the health listener",
        ),
        (
            {**BUCKET, "externalListeners": {"OWN": {**EXTERNAL["OWN"], "port": 9092}}},
            "externalListeners.OWN.port=9092 is taken by listener.port",
        ),
        ({**BUCKET, "listener.port": 9404}, "the port of the health listener"),
        ({**BUCKET, "controllers.storage.size": "2 GB"}, "size"),
        ({**BUCKET, "tableRunner.enabled": True}, "tableRunner.warehouse is missing"),
        ({**BUCKET, "security.sasl.scramUsersSecret": "s"}, "needs a listener with SASL"),
        ({**BUCKET, "topics": [{"partitions": 3}]}, "name"),
        ({**BUCKET, "recover.enabled": True, "moto.enabled": True}, "does not go with moto"),
        ({**SECURE, "moto.enabled": True}, "moto.enabled does not go with authentication"),
        (
            {**BUCKET, "moto.enabled": True, "security.acls.enabled": True},
            "moto.enabled does not go with authentication",
        ),
        (
            {**BUCKET, "moto.enabled": True, **NODE_TLS},
            "moto.enabled does not go with authentication",
        ),
        (
            {**BUCKET, "brokers.resources": {"limits": {"memory": "4GB"}}},
            "brokers.resources.limits.memory=4GB",
        ),
    ],
)
def test_invalid_values_are_rejected(values: Object, said: str) -> None:
    refused = template(values, check=False)
    assert refused.returncode != 0
    assert said in refused.stderr


def containers(objects: list[Object]) -> Iterator[tuple[Object, Object]]:
    for it in objects:
        if it["kind"] in {"StatefulSet", "Deployment", "Pod", "Job"}:
            pod = pod_of(it)
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                yield pod, container


@pytest.mark.parametrize(
    "values",
    [EVERYTHING, {**BUCKET, "moto.enabled": True}, SECURE],
    ids=["everything", "moto", "secure"],
)
def test_pods_are_confined(values: Object) -> None:
    found = list(containers(render(values)))
    assert len(found) >= 4
    for pod, container in found:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] >= 10_000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, (
            "Kubernetes would add PENSTOCK_* variables for Services, which are not settings"
        )
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
        assert container["resources"]["limits"]["memory"]
        assert ":latest" not in container["image"]


def test_brokers_have_no_volume_and_controllers_a_small_one() -> None:
    objects = render(BUCKET)
    broker, controller = (
        named(objects, "StatefulSet", f"penstock-{role}") for role in ("broker", "controller")
    )
    assert "volumeClaimTemplates" not in broker["spec"]
    assert {next(iter(set(volume) - {"name"})) for volume in pod_of(broker)["volumes"]} == {
        "configMap",
        "emptyDir",
    }
    assert (
        controller["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
        == "2Gi"
    )
    assert controller["spec"]["podManagementPolicy"] == "Parallel"
    assert (
        named(objects, "Service", "penstock-controllers")["spec"]["publishNotReadyAddresses"]
        is True
    )


def test_metadata_does_not_outlive_an_in_memory_s3_server() -> None:
    controller = named(render({}, DEV), "StatefulSet", "penstock-controller")
    assert "volumeClaimTemplates" not in controller["spec"]
    assert {"name": "metadata", "emptyDir": {"sizeLimit": "256Mi"}} in pod_of(controller)["volumes"]


@pytest.mark.parametrize(
    ("limit", "own", "expected"),
    [
        ("4Gi", {}, (1_225_575_628, 612_787_814, 1_225_575_628)),
        ("1Gi", {}, (259_207_987, 129_603_993, 259_207_987)),
        ("512Mi", {}, (134_217_728, 49_073_356, 104_857_600)),
        ("4Gi", {"log.cache.max.bytes": 200 << 20}, (200 << 20, 612_787_814, 1_225_575_628)),
    ],
)
def test_memory_limits_of_brokers_determine_their_settings(
    tmp_path: Path, limit: str, own: Object, expected: tuple[int, int, int]
) -> None:
    """The settings are read by a node."""
    objects = render(
        {**BUCKET, "brokers.resources": {"limits": {"memory": limit}}, "config.broker": own}
    )
    file = tmp_path / "penstock.toml"
    file.write_text(named(objects, "ConfigMap", "penstock-config")["data"]["penstock.toml"])
    given = variables_of(objects, "broker", 0) | {"PENSTOCK_CONFIG": str(file)}
    given = {name: text for name, text in given.items() if name.startswith("PENSTOCK_")}
    broker = load("broker", [], given)
    stream = broker.part(StreamConfig)
    assert (
        stream.log_cache_bytes_max,
        stream.block_cache_bytes_max,
        broker.part(BrokerConfig).buffered_request_bytes_max,
    ) == expected


def test_user_ids_can_be_omitted_for_openshift() -> None:
    ids = {f"podSecurityContext.{name}": None for name in ("runAsUser", "runAsGroup", "fsGroup")}
    for pod, _ in containers(render({**BUCKET, **ids})):
        assert pod["securityContext"]["runAsNonRoot"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["securityContext"])


def test_no_node_runs_during_recovery() -> None:
    objects = render({**BUCKET, "recover.enabled": True, "brokers.autoscaling.enabled": True})
    assert {it["spec"]["replicas"] for it in of_kind(objects, "StatefulSet")} == {0}
    job = named(objects, "Job", "penstock-recover-1")
    words = pod_of(job)["containers"][0]["args"]
    assert words[:2] == ["controller", "recover"]
    assert "--voters=0,1,2" in words
    assert f"--cluster-id={NAMESPACE}-penstock" in words


def test_the_test_pod_is_kept_for_its_logs() -> None:
    pod = next(
        it for it in of_kind(render(BUCKET), "Pod") if it["metadata"]["name"] == "penstock-test"
    )
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def variables_of(objects: list[Object], role: str, ordinal: int, **pod: Any) -> dict[str, str]:
    workload = named(objects, "StatefulSet", f"penstock-{role}")
    return environment(pod_of(workload)["containers"][0], Pod.of(workload, ordinal, **pod), objects)


def test_addresses_of_controllers_and_brokers_match() -> None:
    objects = render({**BUCKET, "externalListeners": EXTERNAL, "brokers.replicas": 4})
    controllers = [variables_of(objects, "controller", ordinal) for ordinal in range(3)]
    reported = [
        variables["PENSTOCK_ADVERTISED_LISTENERS"].removeprefix("CONTROLLER://")
        for variables in controllers
    ]
    assert (
        reported[0]
        == f"penstock-controller-0.penstock-controllers.{NAMESPACE}.svc.cluster.local:9093"
    )
    voters = ",".join(f"{ordinal}@{address}" for ordinal, address in enumerate(reported))
    assert {variables["PENSTOCK_CONTROLLER_QUORUM_VOTERS"] for variables in controllers} == {voters}
    broker = variables_of(objects, "broker", 2, zone="b", host_ip="10.0.0.7")
    assert broker["PENSTOCK_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS"] == ",".join(reported)
    assert (broker["PENSTOCK_NODE_ID"], broker["PENSTOCK_BROKER_RACK"]) == ("2", "b")
    assert broker["PENSTOCK_ADVERTISED_LISTENERS"].split(",") == [
        f"PLAINTEXT://penstock-broker-2.penstock-brokers.{NAMESPACE}.svc.cluster.local:9092",
        "NODES://10.0.0.7:{id+31001}",
        "OWN://{pod}.example.com:9096",
        "PUBLIC://broker-{id}.kafka.example.com:443",
    ]
    listened = dict(part.split("://0.0.0.0:") for part in broker["PENSTOCK_LISTENERS"].split(","))
    assert listened == {"PLAINTEXT": "9092", "NODES": "9094", "PUBLIC": "9095", "OWN": "9096"}


def test_nodes_mount_the_certificates_of_their_roles() -> None:
    secrets = {"controller": "controller-certificate", "broker": "broker-certificate"}
    values = {f"nodeTls.{role}Secret": secret for role, secret in secrets.items()}
    objects = render({**BUCKET, **values})
    for role, secret in secrets.items():
        pod = pod_of(named(objects, "StatefulSet", f"penstock-{role}"))
        volume = next(item for item in pod["volumes"] if item.get("secret"))
        assert volume["secret"]["secretName"] == secret
        mount = next(
            item for item in pod["containers"][0]["volumeMounts"] if item["name"] == volume["name"]
        )
        variables = variables_of(objects, role, 0)
        assert {
            name: value
            for name, value in variables.items()
            if name.startswith("PENSTOCK_CONTROLLER_SSL")
        } == {
            "PENSTOCK_CONTROLLER_SSL_CERTIFICATE_LOCATION": f"{mount['mountPath']}/tls.crt",
            "PENSTOCK_CONTROLLER_SSL_KEY_LOCATION": f"{mount['mountPath']}/tls.key",
            "PENSTOCK_CONTROLLER_SSL_CA_LOCATION": f"{mount['mountPath']}/ca.crt",
        }
    plain = render(BUCKET)
    assert not any("CONTROLLER_SSL" in name for name in variables_of(plain, "broker", 0))


def test_only_brokers_get_the_delegation_token_key() -> None:
    objects = render({**SECURE, "security.sasl.delegationTokenSecret": "tokens"})
    name = "PENSTOCK_DELEGATION_TOKEN_SECRET_KEY"
    for role, expected in (("broker", [{"name": "tokens", "key": "key"}]), ("controller", [])):
        pod = pod_of(named(objects, "StatefulSet", f"penstock-{role}"))
        assert [
            item["valueFrom"]["secretKeyRef"]
            for item in pod["containers"][0]["env"]
            if item["name"] == name
        ] == expected


def test_listeners_use_their_protocols_and_nodes_accept_the_settings() -> None:
    """The settings are read by a node."""
    objects = render(SECURE)
    variables = variables_of(objects, "broker", 0)
    assert variables["PENSTOCK_LISTENERS"].startswith("SASL_SSL://0.0.0.0:9092,")
    assert variables["PENSTOCK_ADVERTISED_LISTENERS"].startswith("SASL_SSL://penstock-broker-0.")
    given = {name: text for name, text in variables.items() if name.startswith("PENSTOCK_")}
    given = given | {"PENSTOCK_CONFIG": "", "PENSTOCK_SSL_CLIENT_AUTH": "required"}
    broker = load("broker", [], given)
    names = [listener.name for listener in broker.part(BrokerConfig).bound]
    security = broker.part(SecurityConfig)
    assert security.protocols(names) == {
        "SASL_SSL": "SASL_SSL",
        "NODES": "SASL_SSL",
        "PUBLIC": "SSL",
    }
    assert security.inter_broker_listener_name == "SASL_SSL"
    assert security.super_user_names() == {"User:admin", "User:broker"}
    assert (security.has_authorizer, security.allow_everyone_if_no_acl_found) == (True, False)
    assert not exposures(broker.parts)
    given = variables_of(objects, "controller", 0) | {"PENSTOCK_CONFIG": ""}
    controller = load("controller", [], given)
    assert not exposures(controller.parts)
    authorizing = controller.part(ControllerConfig)
    assert authorizing.super_user_names == security.super_user_names()
    assert (authorizing.authorizer, authorizing.allow_everyone_if_no_acl_found) == (
        security.authorizer,
        security.allow_everyone_if_no_acl_found,
    )
    mounts = {
        "/etc/penstock-listener-tls": "penstock-listener-tls",
        "/etc/penstock-users": "first-users",
        "/etc/penstock-tls": "penstock-broker-tls",
        "/etc/penstock-scram-users": "clerks",
    }
    for kind, name in (("StatefulSet", "penstock-broker"), ("Job", "penstock-setup")):
        pod = pod_of(named(objects, kind, name))
        secrets = {
            volume["name"]: volume["secret"]["secretName"]
            for volume in pod["volumes"]
            if "secret" in volume
        }
        found = {
            mount["mountPath"]: secrets[mount["name"]]
            for mount in pod["containers"][0]["volumeMounts"]
            if mount["name"] in secrets
        }
        assert found.items() <= mounts.items()
        assert len(found) == 3


def test_listeners_can_have_their_own_certificates_and_mechanisms() -> None:
    """A node accepts the settings, and the chart requires no certificate that no listener uses."""
    listeners = {
        "PUBLIC": {**EXTERNAL["PUBLIC"], "security": "SSL", "tlsSecret": "public"},
        "IN_2": {**EXTERNAL["NODES"], "security": "SASL_PLAINTEXT", "saslMechanisms": ["PLAIN"]},
    }
    objects = render(
        {
            **SECURE,
            "listener.security": "SASL_PLAINTEXT",
            "externalListeners": listeners,
            "config.broker": {"listener.name.public.ssl.client.auth": "required"},
        }
    )
    assert not [each for each in objects if each["metadata"]["name"] == "penstock-listener"]
    variables = variables_of(objects, "broker", 0)
    given = {name: text for name, text in variables.items() if name.startswith("PENSTOCK_")}
    own = {"PENSTOCK_CONFIG": "", "PENSTOCK_LISTENER_NAME_PUBLIC_SSL_CLIENT_AUTH": "required"}
    security = load("broker", [], given | own).part(SecurityConfig)
    assert security.of_listener("IN_2").sasl_enabled_mechanisms == ("PLAIN",)
    assert security.of_listener("SASL_PLAINTEXT").sasl_enabled_mechanisms != ("PLAIN",)
    public = security.of_listener("PUBLIC")
    pod = pod_of(named(objects, "StatefulSet", "penstock-broker"))
    (mount,) = [
        each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "listener-public"
    ]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "listener-public"]
    assert volume["secret"]["secretName"] == "public"
    assert [public.ssl_keystore_location, public.ssl_truststore_location] == [
        f"{mount['mountPath']}/{file}" for file in ("tls-combined.pem", "ca.crt")
    ]


def test_certificates_contain_all_addresses_of_their_servers() -> None:
    objects = render({**SECURE, "brokers.replicas": 2})
    listener = named(objects, "Certificate", "penstock-listener")["spec"]
    assert listener["secretName"] == "penstock-listener-tls"
    assert listener["additionalOutputFormats"] == [{"type": "CombinedPEM"}]
    assert set(listener["dnsNames"]) >= {
        f"*.penstock-brokers.{NAMESPACE}.svc.cluster.local",
        f"penstock.{NAMESPACE}.svc.cluster.local",
        "broker-0.kafka.example.com",
        "broker-1.kafka.example.com",
    }
    for role in ("controller", "broker", "admin"):
        node = named(objects, "Certificate", f"penstock-node-{role}")["spec"]
        assert node["commonName"] in ControllerConfig(data_dir=CHART).name_rules.of(
            CallerRole(role)
        )
        assert (node["secretName"], node["issuerRef"]["name"]) == (f"penstock-{role}-tls", "nodes")
    controller = named(objects, "Certificate", "penstock-node-controller")["spec"]
    assert f"*.penstock-controllers.{NAMESPACE}.svc.cluster.local" in controller["dnsNames"]
    assert not of_kind(render(BUCKET), "Certificate")


def test_only_nodes_and_operators_can_connect_to_controllers() -> None:
    objects = render(SECURE)
    ingress = named(objects, "NetworkPolicy", "penstock-controller")["spec"]["ingress"]
    rule = next(rule for rule in ingress if rule["ports"] == [{"port": "controller"}])
    peers = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    component = "app.kubernetes.io/component"
    assert [peer.get(component) for peer in peers] == ["broker", "controller", None]
    assert peers[2] == {"penstock/operator": "true"}
    assert all(set(peer) == {"podSelector"} for peer in rule["from"]), "of this namespace alone"
    labels = {
        kind: named(objects, kind, name)["metadata"]["labels"]
        for kind, name in (("Pod", "penstock-test"), ("Job", "penstock-setup"))
    }
    for own in labels.values():
        assert not any(peer.items() <= own.items() for peer in peers)
    closed = render({**SECURE, "networkPolicy.operators": []})
    ingress = named(closed, "NetworkPolicy", "penstock-controller")["spec"]["ingress"]
    assert len(ingress[0]["from"]) == 2


def test_each_external_service_selects_its_broker() -> None:
    objects = render({**BUCKET, "externalListeners": EXTERNAL, "brokers.replicas": 4})
    ports = {
        it["name"]: it["containerPort"]
        for it in pod_of(named(objects, "StatefulSet", "penstock-broker"))["containers"][0]["ports"]
    }
    for ordinal in range(4):
        service = named(objects, "Service", f"penstock-nodes-{ordinal}")["spec"]
        assert service["selector"]["apps.kubernetes.io/pod-index"] == str(ordinal)
        assert service["ports"][0]["nodePort"] == 31001 + ordinal
        assert ports[service["ports"][0]["targetPort"]] == 9094
    assert (
        named(objects, "Service", "penstock-nodes-bootstrap")["spec"]["ports"][0]["nodePort"]
        == 31000
    )
    public = named(objects, "Service", "penstock-public-3")
    assert public["metadata"]["annotations"] == {
        "external-dns.alpha.kubernetes.io/hostname": "broker-3.kafka.example.com"
    }
    assert not [
        it
        for it in of_kind(objects, "Service")
        if it["metadata"]["name"].startswith("penstock-own")
    ]
    scaled = render({**EVERYTHING, "brokers.autoscaling.maxReplicas": 7})
    assert named(scaled, "Service", "penstock-nodes-6")
    assert "replicas" not in named(scaled, "StatefulSet", "penstock-broker")["spec"]


def test_a_broker_has_time_to_drain() -> None:
    for seconds in (30, 300):
        objects = render({**BUCKET, "brokers.drainSeconds": seconds})
        pod = pod_of(named(objects, "StatefulSet", "penstock-broker"))
        pause_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        drain_ms = int(variables_of(objects, "broker", 0)["PENSTOCK_SHUTDOWN_TIMEOUT_MS"])
        assert drain_ms == seconds * 1_000
        assert pod["terminationGracePeriodSeconds"] > pause_s + seconds


def test_the_readiness_timeout_is_longer_than_that_of_the_store_check() -> None:
    from penstock.broker.health import STORE_TIMEOUT_S

    for _, container in containers(render(BUCKET)):
        if container["name"] in {"broker", "controller"}:
            probes = {
                name: container[f"{name}Probe"]["httpGet"]["path"]
                for name in ("startup", "liveness", "readiness")
            }
            assert probes == {"startup": "/startz", "liveness": "/livez", "readiness": "/readyz"}
            assert container["readinessProbe"]["timeoutSeconds"] > STORE_TIMEOUT_S


def test_changed_settings_restart_only_the_pods_that_use_them() -> None:
    def sums(values: Object) -> dict[str, str]:
        objects = render({**BUCKET, **values})
        return {
            role: named(objects, "StatefulSet", f"penstock-{role}")["spec"]["template"]["metadata"][
                "annotations"
            ]["checksum/config"]
            for role in ("broker", "controller")
        }

    before, after = sums({}), sums({"config.broker": {"num.partitions": 3}})
    assert before["broker"] != after["broker"]
    assert before["controller"] == after["controller"]


def test_monitoring_finds_every_node_once() -> None:
    objects = render(EVERYTHING)
    monitor = of_kind(objects, "ServiceMonitor")[0]["spec"]
    requested = monitor["selector"]["matchLabels"]
    found = [
        it["metadata"]["name"]
        for it in of_kind(objects, "Service")
        if requested.items() <= it["metadata"]["labels"].items()
        and any(port["name"] == "health" for port in it["spec"]["ports"])
    ]
    assert sorted(found) == ["penstock-brokers", "penstock-controllers", "penstock-table-runner"]
    assert of_kind(objects, "PrometheusRule")[0]["spec"]["groups"]
    dashboards = [
        it
        for it in of_kind(objects, "ConfigMap")
        if it["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    assert [json.loads(text)["title"] for it in dashboards for text in it["data"].values()]


def test_alerts_link_to_their_runbooks() -> None:
    base = "https://git.example.com/penstock/blob/main/"
    for values, begin in (
        (EVERYTHING, "docs/"),
        (EVERYTHING | {"monitoring.prometheusRule.runbookBase": base}, f"{base}docs/"),
    ):
        alerts = [
            rule
            for it in of_kind(render(values), "PrometheusRule")
            for group in it["spec"]["groups"]
            for rule in group["rules"]
            if "alert" in rule
        ]
        assert alerts
        for alert in alerts:
            assert alert["annotations"]["runbook_url"].startswith(f"{begin}how-to/alerts.md#"), (
                alert["alert"]
            )


def test_fullname_override_prefixes_every_name() -> None:
    objects = render({**BUCKET, "fullnameOverride": "kafka"})
    assert {
        re.split("-", it["metadata"]["name"])[0] for it in objects if it["kind"] != "ClusterRole"
    } == {"kafka"}
