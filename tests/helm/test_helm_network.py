"""Check the chart's network objects: Gateway API routes lead each client to the broker that
advertised the address, and egress policies let pods connect to what they need.
"""

from typing import Any

import kubernetes_validate
import pytest

from penstock.broker.config import BrokerConfig
from penstock.deploy.node.config.load import load
from tests.helm.test_helm_objects import BUCKET, SECURE, variables_of
from tests.support.chart import Object, named, of_kind, pod_of, render, template

GROUP = "gateway.networking.k8s.io"
ROUTES: Object = {
    "PUBLIC": {
        "type": "TLSRoute",
        "port": 9095,
        "security": "SASL_SSL",
        "host": "broker-{id}.kafka.example.com",
        "gatewayPort": 443,
    },
    "PLAIN": {"type": "TCPRoute", "port": 9096, "host": "kafka.example.com", "gatewayPort": 9200},
}
GATEWAY: Object = {
    **SECURE,
    "security.allowInsecure": True,
    "externalListeners": ROUTES,
    "gateway": {"enabled": True, "className": "envoy"},
    "brokers.replicas": 2,
}
EGRESS: Object = {
    **BUCKET,
    "networkPolicy.egress.enabled": True,
    "store.endpoint": "http://10.1.2.3:8333",
}


def advertised(objects: list[Object], ordinal: int) -> dict[str, tuple[str, int]]:
    """Return host and port of each listener, as the broker itself derives them from the
    variables.
    """
    given = {
        name: text
        for name, text in variables_of(objects, "broker", ordinal).items()
        if name.startswith("PENSTOCK_")
    }
    config = load("broker", [], given | {"PENSTOCK_CONFIG": ""}).part(BrokerConfig)
    ports = {listener.name: listener.port for listener in config.bound}
    return {item.name: (item.host, item.port) for item in config.advertised("pod", ports)}


def reached(objects: list[Object], route: Object) -> tuple[Object, int]:
    """Return the pod selector and the port of a route."""
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    service = named(objects, "Service", backend["name"])["spec"]
    assert service["type"] == "ClusterIP"
    (port,) = (port for port in service["ports"] if port["port"] == backend["port"])
    ports = pod_of(named(objects, "StatefulSet", "penstock-broker"))["containers"][0]["ports"]
    return service["selector"], {it["name"]: it["containerPort"] for it in ports}[
        port["targetPort"]
    ]


def test_routes_lead_to_the_broker_that_advertised_the_address() -> None:
    objects = render(GATEWAY)
    gateway = named(objects, "Gateway", "penstock")["spec"]
    assert gateway["gatewayClassName"] == "envoy"
    sections = {listener["name"]: listener for listener in gateway["listeners"]}
    assert sorted(sections) == ["tcp-9199", "tcp-9200", "tcp-9201", "tls-443"]
    assert sections["tls-443"]["tls"] == {"mode": "Passthrough"}, "brokers end TLS"
    certified = named(objects, "Certificate", "penstock-listener")["spec"]["dnsNames"]
    for identity in ("bootstrap", "0", "1"):
        tls, tcp = (
            named(objects, kind, f"penstock-{name}-{identity}")
            for kind, name in (("TLSRoute", "public"), ("TCPRoute", "plain"))
        )
        ports: dict[str, int] = {}
        for route, port in ((tls, 9095), (tcp, 9096)):
            assert route["apiVersion"] == f"{GROUP}/v1"
            (parent,) = route["spec"]["parentRefs"]
            assert parent["name"] == "penstock"
            section = sections[parent["sectionName"]]
            assert section["allowedRoutes"]["kinds"] == [{"kind": route["kind"]}]
            ports[route["kind"]] = section["port"]
            selector, target = reached(objects, route)
            assert selector.get("apps.kubernetes.io/pod-index", "bootstrap") == identity
            assert target == port
        (host,) = tls["spec"]["hostnames"]
        assert host in certified
        if identity != "bootstrap":
            known = advertised(objects, int(identity))
            assert known["PUBLIC"] == (host, ports["TLSRoute"])
            assert known["PLAIN"] == ("kafka.example.com", ports["TCPRoute"])
    assert not of_kind(render(BUCKET), "Gateway")


def test_routes_refer_to_an_existing_gateway() -> None:
    shared: dict[str, Any] = {"enabled": True, "name": "shared", "namespace": "gateways"}
    section = {**ROUTES["PLAIN"], "sectionName": "kafka-{id}"}
    objects = render(
        {**GATEWAY, "gateway": shared, "externalListeners": {**ROUTES, "PLAIN": section}}
    )
    assert not of_kind(objects, "Gateway")
    gateway = {"name": "shared", "namespace": "gateways"}
    parents = {
        route["metadata"]["name"]: route["spec"]["parentRefs"]
        for kind in ("TLSRoute", "TCPRoute")
        for route in of_kind(objects, kind)
    }
    assert parents["penstock-public-1"] == [{**gateway, "port": 443}]
    assert parents["penstock-plain-1"] == [{**gateway, "sectionName": "kafka-1"}]
    assert parents["penstock-plain-bootstrap"] == [{**gateway, "sectionName": "kafka-bootstrap"}]


def test_routes_use_the_newest_api_version_that_the_cluster_serves() -> None:
    cluster = ["apps/v1/StatefulSet"]
    old = [f"{GROUP}/v1alpha2/TLSRoute", f"{GROUP}/v1alpha2/TCPRoute"]
    new = [f"{GROUP}/v1/TLSRoute", *old]
    for kinds, expected in ((old, "v1alpha2"), (new, "v1")):
        objects = render(GATEWAY, kinds=[*cluster, *kinds])
        versions = {it["kind"]: it["apiVersion"] for it in objects}
        assert versions["TLSRoute"] == f"{GROUP}/{expected}"
        assert versions["TCPRoute"] == f"{GROUP}/v1alpha2"
    refused = template(GATEWAY, check=False, kinds=cluster).stderr
    assert "does not have the kind TCPRoute" in refused
    assert "install Gateway API 1.6" in refused


def one(without: str = "", **changes: Any) -> Object:
    listener = {**ROUTES["PUBLIC"], **changes}
    listener.pop(without, None)
    return {**GATEWAY, "externalListeners": {"PUBLIC": listener}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({**GATEWAY, "gateway.enabled": False}, "needs gateway.enabled=true"),
        (one("gatewayPort"), "externalListeners.PUBLIC.gatewayPort is missing"),
        (one(host="kafka.example.com"), "externalListeners.PUBLIC.host has to contain {id}"),
        (one(security="PLAINTEXT"), "set externalListeners.PUBLIC.security=SASL_SSL (or SSL)"),
        (
            {
                **GATEWAY,
                "externalListeners": {**ROUTES, "PLAIN": {**ROUTES["PLAIN"], "gatewayPort": 442}},
            },
            "port 443 of the Gateway is taken",
        ),
        (
            {**EGRESS, "store.endpoint": "http://s3.example.com"},
            "networkPolicy.egress.store is missing",
        ),
        ({**EGRESS, "brokers.rack": "nodeLabel"}, "networkPolicy.egress.kubernetesApi is missing"),
    ],
)
def test_impossible_network_values_are_rejected(values: Object, said: str) -> None:
    refused = template(values, check=False)
    assert refused.returncode != 0
    assert said in refused.stderr


def rules_of(objects: list[Object], role: str) -> list[Object]:
    policy = named(objects, "NetworkPolicy", f"penstock-{role}-egress")["spec"]
    assert policy["policyTypes"] == ["Egress"]
    assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == role
    return policy["egress"]


def allows(rules: list[Object], port: int, labels: Object | None = None, cidr: str = "") -> bool:
    """Return whether the policy allows TCP connections to pods with the labels, or to
    an IP block.
    """
    for rule in rules:
        for peer in rule.get("to", [{}]):
            own = peer.get("podSelector", {}).get("matchLabels", {})
            is_pod = labels is not None and own and own.items() <= labels.items()
            is_block = cidr and peer.get("ipBlock", {}).get("cidr") == cidr
            if (is_pod or is_block) and {"protocol": "TCP", "port": port} in rule["ports"]:
                return True
    return False


def test_pods_connect_only_to_required_peers() -> None:
    values = {
        **EGRESS,
        "externalListeners": {"PUBLIC": {**ROUTES["PLAIN"], "type": "ClusterIP"}},
        "topics": [{"name": "orders"}],
    }
    objects = render(values)
    for it in of_kind(objects, "NetworkPolicy"):
        kubernetes_validate.validate(it, "1.34", strict=True)
    pods = {
        role: named(objects, "StatefulSet", f"penstock-{role}")["spec"]["template"]["metadata"][
            "labels"
        ]
        for role in ("broker", "controller")
    }
    dns = {"k8s-app": "kube-dns"}
    expected = {
        "broker": {"store", "controller", "broker"},
        "controller": {"store", "controller"},
        "setup": {"broker"},
        "test": {"broker"},
    }
    for role, names in expected.items():
        rules = rules_of(objects, role)
        assert allows(rules, 53, dns)
        assert allows(rules, 8333, cidr="10.1.2.3/32") == ("store" in names)
        assert allows(rules, 9093, pods["controller"]) == ("controller" in names)
        for port in (9092, 9096):
            assert allows(rules, port, pods["broker"]) == ("broker" in names), (role, port)
        assert not allows(rules, 9404, pods["broker"])
        assert all(rule.get("to") and rule.get("ports") for rule in rules), "no rule allows all"
    labels = {it["metadata"]["name"]: it["metadata"]["labels"] for it in objects}
    for name in ("penstock-setup", "penstock-test"):
        role = labels[name]["app.kubernetes.io/component"]
        assert f"penstock-{role}-egress" in labels
    assert not [
        it for it in of_kind(render(BUCKET), "NetworkPolicy") if "egress" in it["metadata"]["name"]
    ]


def test_pods_can_connect_to_a_store_at_any_address() -> None:
    anywhere = [{"ipBlock": {"cidr": "0.0.0.0/0"}}]
    given = {"networkPolicy.egress.store": anywhere}
    rules = rules_of(render({**EGRESS, **given, "store.endpoint": ""}), "controller")
    assert allows(rules, 443, cidr="0.0.0.0/0")
    rules = rules_of(
        render({**EGRESS, **given, "networkPolicy.egress.storePorts": [8333]}), "broker"
    )
    assert allows(rules, 8333, cidr="0.0.0.0/0")
    objects = render({**EGRESS, "store.endpoint": "", "moto.enabled": True})
    moto = named(objects, "Deployment", "penstock-moto")["spec"]["template"]["metadata"]["labels"]
    assert allows(rules_of(objects, "broker"), 9000, moto)
    assert rules_of(objects, "moto") == []


def test_pods_can_connect_to_additional_peers() -> None:
    tracing = {
        "to": [{"namespaceSelector": {}}],
        "ports": [{"protocol": "TCP", "port": 4318}],
    }
    api = [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    objects = render(
        {
            **EGRESS,
            "brokers.rack": "nodeLabel",
            "networkPolicy.egress.more": [tracing],
            "networkPolicy.egress.kubernetesApi": api,
            "networkPolicy.egress.dns": [],
            "networkPolicy.egress.dnsPorts": [5353],
        }
    )
    for role in ("broker", "controller"):
        rules = rules_of(objects, role)
        assert tracing in rules
        assert rules[0] == {
            "ports": [{"protocol": "UDP", "port": 5353}, {"protocol": "TCP", "port": 5353}]
        }
        assert allows(rules, 6443, cidr="10.0.0.1/32") == (role == "broker")


def test_the_recovery_job_can_connect_to_the_store() -> None:
    objects = render({**EGRESS, "recover.enabled": True})
    assert allows(rules_of(objects, "recover"), 8333, cidr="10.1.2.3/32")
