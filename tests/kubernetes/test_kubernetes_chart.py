"""Install, upgrade, scale and uninstall the chart on a real API server with real controllers: `make
kubernetes`. There are no nodes: pods are admitted and remain pending.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.test_helm_network import GATEWAY
from tests.helm.test_helm_objects import EVERYTHING, SECURE
from tests.support.chart import of_kind, render
from tests.support.kubernetes import Kubernetes

pytestmark = pytest.mark.long
BINARIES = os.environ.get("PENSTOCK_KUBERNETES", "")
BUCKET = {
    "store.bucket": "records",
    "store.credentials.accessKeyId": "key",
    "store.credentials.secretAccessKey": "secret",
    "security.allowInsecure": True,
}
SETS = "apps/v1/statefulsets"
JOBS = "/apis/batch/v1/namespaces/streams/jobs"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    if not BINARIES:
        pytest.skip("the servers of Kubernetes are missing: make kubernetes compiles them")
    with Kubernetes(Path(BINARIES), tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture
def kubernetes(servers: Kubernetes) -> Iterator[Kubernetes]:
    yield servers
    servers.helm("uninstall", None, "--ignore-not-found")
    servers.send_request("DELETE", f"{JOBS}?propagationPolicy=Background")
    servers.until(lambda: not servers.names("v1/pods") and not servers.names(SETS), "it is gone")
    for claim in servers.names("v1/persistentvolumeclaims"):
        servers.send_request("DELETE", f"/api/v1/namespaces/streams/persistentvolumeclaims/{claim}")


def pods_of(kubernetes: Kubernetes, role: str) -> int:
    return sum(name.startswith(f"penstock-{role}-") for name in kubernetes.names("v1/pods"))


def replicas(kubernetes: Kubernetes, role: str) -> int:
    return int(kubernetes.get(SETS, f"penstock-{role}")["spec"]["replicas"])


def template_of(kubernetes: Kubernetes, role: str) -> Any:
    return kubernetes.get(SETS, f"penstock-{role}")["spec"]["template"]


def refusal(kubernetes: Kubernetes, values: dict[str, Any]) -> str:
    done: subprocess.CompletedProcess[str] = kubernetes.helm("upgrade", values, check=False)
    assert done.returncode != 0
    return done.stderr


def test_restricted_namespace_admits_all_pods(kubernetes: Kubernetes) -> None:
    kubernetes.helm("install", BUCKET)
    for role in ("broker", "controller"):
        kubernetes.until(lambda role=role: pods_of(kubernetes, role) == 3, f"3 {role}s")  # type: ignore[misc]
    kubernetes.helm("uninstall")
    kubernetes.until(lambda: not kubernetes.names("v1/pods"), "the pods are gone")
    assert len(kubernetes.names("v1/persistentvolumeclaims")) == 3, "the journals stay"


@pytest.mark.parametrize("values", [EVERYTHING, SECURE], ids=["everything", "secure"])
def test_api_server_accepts_the_rendered_chart(
    kubernetes: Kubernetes, values: dict[str, Any]
) -> None:
    """Custom resources are excluded, because their definitions belong to other projects."""
    own = {
        key: value
        for key, value in values.items()
        if not key.startswith(("monitoring.", "security.tls.certManager", "nodeTls.certManager"))
    }
    if values is SECURE:
        own |= {
            "security.tls.secret": "listeners",
            "nodeTls.controllerSecret": "controller",
            "nodeTls.brokerSecret": "broker",
            "security.acls": {"enabled": True},
        }
    kubernetes.helm("install", own, "--no-hooks")  # helm would wait until the hook pods end
    kubernetes.until(lambda: pods_of(kubernetes, "controller") == 3, "3 controllers")
    for job in of_kind(render(own), "Job"):
        kubernetes.send_request("POST", f"{JOBS}?dryRun=All", job)


def define_gateway_api(kubernetes: Kubernetes) -> None:
    for file in sorted((Path(BINARIES) / "gateway-api").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        kubernetes.send_request("POST", DEFINITIONS, definition)
        path = f"{DEFINITIONS}/{definition['metadata']['name']}"

        def is_served(path: str = path) -> bool:
            found = kubernetes.send_request("GET", path).get("status", {}).get("conditions")
            return any(it["type"] == "Established" and it["status"] == "True" for it in found or ())

        kubernetes.until(is_served, f"{file.name} is served")


def test_api_server_accepts_gateway_routes(kubernetes: Kubernetes) -> None:
    egress = {"enabled": True, "store": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}
    own = {
        **GATEWAY,
        "security.tls": {"secret": "listeners"},
        "nodeTls": {"controllerSecret": "controller", "brokerSecret": "broker"},
        "networkPolicy": {"enabled": True, "egress": egress},
    }
    refused = kubernetes.helm("install", own, check=False).stderr
    assert "does not have the kind" in refused
    define_gateway_api(kubernetes)
    kubernetes.helm("install", own, "--no-hooks")
    group = "gateway.networking.k8s.io/v1"
    for kind, name in (("tlsroutes", "public"), ("tcproutes", "plain")):
        names = {f"penstock-{name}-{identity}" for identity in ("bootstrap", 0, 1)}
        assert kubernetes.names(f"{group}/{kind}") == names
    gateway = kubernetes.get(f"{group}/gateways", "penstock")
    assert len(gateway["spec"]["listeners"]) == 4
    policies = kubernetes.names("networking.k8s.io/v1/networkpolicies")
    assert {"penstock-broker", "penstock-broker-egress", "penstock-controller-egress"} <= policies


def test_controller_count_cannot_change_while_the_quorum_is_founded(
    kubernetes: Kubernetes,
) -> None:
    kubernetes.helm("install", BUCKET)
    five = {**BUCKET, "controllers.replicas": 5}
    assert "cannot change from 3 to 5 while controllers.founding=true" in refusal(kubernetes, five)
    kubernetes.helm("upgrade", {**five, "controllers.founding": False})
    kubernetes.until(lambda: pods_of(kubernetes, "controller") == 5, "5 controllers")


def test_volume_size_cannot_change(kubernetes: Kubernetes) -> None:
    kubernetes.helm("install", BUCKET)
    larger = {**BUCKET, "controllers.storage.size": "4Gi"}
    assert "cannot change from 2Gi to 4Gi" in refusal(kubernetes, larger)


def test_autoscaling_keeps_the_current_number_of_brokers(kubernetes: Kubernetes) -> None:
    kubernetes.helm("install", BUCKET)
    kubernetes.scale("penstock-broker", 6)
    automatic = {**BUCKET, "brokers.autoscaling.enabled": True}
    kubernetes.helm("upgrade", automatic)
    assert replicas(kubernetes, "broker") == 6
    kubernetes.scale("penstock-broker", 5)
    kubernetes.helm("upgrade", {**automatic, "brokers.podAnnotations": {"a": "b"}})
    assert replicas(kubernetes, "broker") == 5


def test_failed_first_install_is_repaired_by_deleting_its_pods(kubernetes: Kubernetes) -> None:
    """Its pods never become ready (as none do without nodes), so an upgrade alone replaces none of
    them.
    """
    kubernetes.helm("install", {**BUCKET, "image.tag": "wrong"})
    kubernetes.until(lambda: pods_of(kubernetes, "controller") == 3, "3 controllers")
    kubernetes.helm("upgrade", {**BUCKET, "image.tag": "right"})

    def images() -> set[str]:
        pods = kubernetes.get("v1/pods", "")["items"]
        return {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in pods}

    def is_seen(role: str) -> bool:
        found = kubernetes.get(SETS, f"penstock-{role}")
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    kubernetes.until(lambda: is_seen("broker") and is_seen("controller"), "the upgrade is seen")
    assert "wrong" in images()
    path = "/api/v1/namespaces/streams/pods?labelSelector=app.kubernetes.io/instance=penstock"
    kubernetes.send_request("DELETE", path)
    kubernetes.until(
        lambda: images() == {"right"} and len(kubernetes.names("v1/pods")) == 6, "all are replaced"
    )


def test_changed_credentials_restart_pods(kubernetes: Kubernetes) -> None:
    kubernetes.helm("install", BUCKET)
    before = {role: template_of(kubernetes, role) for role in ("broker", "controller")}
    kubernetes.helm("upgrade", {**BUCKET, "store.credentials.secretAccessKey": "another"})
    for role, template in before.items():
        assert template_of(kubernetes, role) != template


def test_recovery_stops_all_nodes_and_runs_as_a_job(kubernetes: Kubernetes) -> None:
    kubernetes.helm("install", BUCKET)
    kubernetes.until(lambda: pods_of(kubernetes, "broker") == 3, "3 brokers")
    kubernetes.helm("upgrade", {**BUCKET, "recover.enabled": True})
    kubernetes.until(
        lambda: pods_of(kubernetes, "broker") + pods_of(kubernetes, "controller") == 0, "no node"
    )
    kubernetes.until(lambda: pods_of(kubernetes, "recover") == 1, "the job has a pod")
    kubernetes.helm("upgrade", BUCKET)
    kubernetes.until(lambda: pods_of(kubernetes, "controller") == 3, "3 controllers")
    assert not kubernetes.names("batch/v1/jobs")
