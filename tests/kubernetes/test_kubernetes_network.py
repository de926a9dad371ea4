"""Run the chart's pods in network namespaces in which its network policies are enforced on packets:
Penstock works, and pods reach nothing else. `make kubernetes` runs it.
"""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import Pod, command, environment, named, of_kind, pod_of, render
from tests.support.kubernetes import Kubernetes
from tests.support.missing import missing
from tests.support.pod_network import DOMAIN, PodNetwork, Target, has_own_network
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long
BINARIES = os.environ.get("PENSTOCK_KUBERNETES", "")
VALUES: dict[str, Any] = {
    "store.bucket": "records",
    "security.allowInsecure": True,
    "moto.enabled": True,
    "brokers.replicas": 2,
    "networkPolicy": {
        "enabled": True,
        "clients": [{"podSelector": {"matchLabels": {"kafka": "client"}}}],
        "monitoring": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ],
        "egress": {"enabled": True},
    },
}
BROKERS = ("penstock-broker-0", "penstock-broker-1")
CONTROLLERS = tuple(f"penstock-controller-{ordinal}" for ordinal in range(3))
KAFKA, QUORUM, HEALTH, STORE, DNS, OTHER = 9092, 9093, 9404, 9000, 53, 8080
EVERYTHING: set[Target] = {
    *((name, port) for name in BROKERS for port in (KAFKA, HEALTH)),
    *((name, port) for name in CONTROLLERS for port in (QUORUM, HEALTH)),
    ("penstock-moto", STORE),
    ("dns", DNS),
    ("stranger", OTHER),
}


def of(port: int) -> set[Target]:
    return {target for target in EVERYTHING if target[1] == port}


ALLOWED = {
    "client": of(KAFKA) | of(DNS) | of(OTHER),
    "stranger": of(DNS) | of(OTHER),
    "operator": of(QUORUM) | of(DNS) | of(OTHER),
    "prometheus": of(HEALTH) | of(DNS) | of(OTHER),
    "penstock-broker-0": of(KAFKA) | of(QUORUM) | of(STORE) | of(DNS),
    "penstock-controller-0": of(QUORUM) | of(STORE) | of(DNS),
    "penstock-moto": set[Target](),
    "penstock-test": of(KAFKA) | of(DNS),
}
"""What each pod may reach. The chart's policies do not limit where pods of others connect to, so
those reach each other and DNS.
"""


class Release:
    """The chart, installed on an API server, with its pods as processes in a network."""

    def __init__(
        self, kubernetes: Kubernetes, network: PodNetwork, directory: Path, bind: str
    ) -> None:
        values = {**VALUES, "bindAddress": bind}
        self.kubernetes = kubernetes
        self.network = network
        self._objects = render(values)
        self._files = directory
        config = named(self._objects, "ConfigMap", "penstock-config")["data"]
        for name, text in config.items():
            (directory / name).write_text(text)
        kubernetes.helm("install", values)
        kubernetes.until(lambda: len(self._own_pods()) == 6, "6 pods")
        (moto,) = (name for name in self._own_pods() if "moto" in name)
        network.connect(moto, f"penstock-moto.{DOMAIN}")
        network.pods["penstock-moto"] = network.pods[moto]
        for role, names in (("broker", BROKERS), ("controller", CONTROLLERS)):
            for name in names:
                others = (f"penstock.{DOMAIN}",) if name == BROKERS[0] else ()
                network.connect(name, f"{name}.penstock-{role}s.{DOMAIN}", *others)

    def _own_pods(self) -> set[str]:
        return {it for it in self.kubernetes.names("v1/pods") if it.startswith("penstock-")}

    def start(self, kind: str, workload_name: str, ordinal: int = 0) -> None:
        """Start the container of a pod."""
        workload = named(self._objects, kind, workload_name)
        pod = Pod.of(workload, ordinal)
        name = workload_name if kind == "Deployment" else pod.name
        variables, words = self._command(workload, pod, name)
        self.network.start(words, name, variables)

    def _command(self, workload: Any, pod: Pod, name: str) -> tuple[dict[str, str], list[str]]:
        """Return the environment and arguments of a pod's command, with directories of
        this test.
        """
        container = pod_of(workload)["containers"][0]
        own = self.network.pods[name].directory

        def here(text: str) -> str:
            text = text.replace("/tmp/", f"{own}/").replace("/etc/penstock", str(self._files))
            return text.replace("/var/lib/penstock", str(own))

        found = environment(container, pod, self._objects)
        variables = {key: here(text) for key, text in found.items()}
        return variables, [here(word) for word in command(container, variables)]

    def wait_ready(self, name: str) -> None:
        address = self.network.pods[name].address
        url = f"http://{f'[{address}]' if ':' in address else address}:{HEALTH}/readyz"

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=5) as response:
                    return bool(response.status == 200)
            except urllib.error.HTTPError as error:
                error.close()
                return False
            except OSError:
                return False

        wait_until(is_ready, 120)

    def run_test(self) -> str:
        """Return the output of `helm test --logs`, whose pod is also a process in the network."""
        name = "penstock-test"
        (test,) = of_kind(self._objects, "Pod")
        with ThreadPoolExecutor(1) as thread:
            helm = thread.submit(self.kubernetes.helm, "test", None, "--logs")
            self.kubernetes.until(lambda: name in self._own_pods(), "helm has created the pod")
            self.network.connect(name)
            variables, words = self._command(test, Pod.of(test, 0), name)
            self.network.succeed(name, self.network.said(name, *words, variables=variables))
            return helm.result().stdout


@pytest.fixture(params=[4, 6], ids=["ipv4", "ipv6"])
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Release]:
    if not BINARIES:
        pytest.skip("the servers of Kubernetes are missing: make kubernetes compiles them")
    if not has_own_network():
        missing("this is not a network namespace of its own: make kubernetes makes one")
    directory, data = tmp_path / "network", tmp_path / "kubernetes"
    directory.mkdir()
    data.mkdir()
    services, bind = {4: ("10.0.0.0/16", "0.0.0.0"), 6: ("fd00:10::/112", "[::]")}[request.param]
    with (
        Kubernetes(Path(BINARIES), data, services) as kubernetes,
        PodNetwork(kubernetes, directory, request.param) as network,
    ):
        kubernetes.send_request("POST", "/api/v1/namespaces", {"metadata": {"name": "monitoring"}})
        network.add("prometheus", {"app": "prometheus"}, "monitoring")
        network.add("client", {"kafka": "client"})
        network.add("operator", {"penstock/operator": "true"})
        network.add("stranger", {"app": "stranger"})
        network.listen("stranger", OTHER)
        yield Release(kubernetes, network, directory, bind)


def reached(network: PodNetwork, pod: str) -> set[Target]:
    """Return which other pods the pod reaches. Policies do not cover its own address."""
    return network.reached(pod, {target for target in EVERYTHING if target[0] != pod})


def test_penstock_works_under_its_network_policies_and_reaches_nothing_else(
    release: Release,
) -> None:
    network = release.network
    enforcer = network.enforce(Path(BINARIES) / "policies")
    release.start("Deployment", "penstock-moto")
    for ordinal in range(len(CONTROLLERS)):
        release.start("StatefulSet", "penstock-controller", ordinal)
    for ordinal, name in enumerate(BROKERS):
        release.start("StatefulSet", "penstock-broker", ordinal)
        release.wait_ready(name)
    assert "three records came back" in release.run_test()

    def seen(pod: str) -> set[Target]:
        wait_until(lambda: expected[pod] <= reached(network, pod))
        return reached(network, pod)

    expected = {
        pod: {target for target in allowed if target[0] != pod} for pod, allowed in ALLOWED.items()
    }
    with ThreadPoolExecutor(len(expected)) as threads:
        assert dict(zip(expected, threads.map(seen, expected), strict=True)) == expected
    enforcer.terminate()
    enforcer.wait(30)
    assert reached(network, "stranger") == EVERYTHING - {("stranger", OTHER)}
