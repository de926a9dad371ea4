"""Give pods a network as a node would, but without a node: each pod is a network namespace with an
address, routed through this one, where SIG Network's controller enforces the network policies.

This process needs a network namespace of its own; `make kubernetes` gives it one. dnsmasq in a pod
of kube-system resolves the names of Services and pods, as CoreDNS does.
"""

import ipaddress
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from penstock.deploy.local.certificates import Authority
from tests.support.chart import NAMESPACE, Object
from tests.support.kubernetes import Kubernetes
from tests.support.waiting import wait_until

NODE: Final = "node"
DOMAIN: Final = f"{NAMESPACE}.svc.cluster.local"
_POD_ADDRESSES: Final = {4: "10.244.0.0/24", 6: "fd00:10:244::/120"}
_GATEWAYS: Final = {4: "169.254.1.1", 6: "fe80::1"}
_FORWARDING: Final = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}
_QUEUE: Final = 100
_START_S: Final = 180.0
_REFUSED_S: Final = 3.0
"""Timeout of a connection attempt that should fail. Policies drop packets, so there is no
refusal.
"""
_BIN: Final = Path(sys.executable).parent
_LISTEN: Final = """
import asyncio, sys
async def main():
    for port in sys.argv[1:]:
        await asyncio.start_server(lambda _, writer: writer.close(), None, int(port))
    await asyncio.Event().wait()
asyncio.run(main())
"""
_CONNECT: Final = """
import asyncio, json, sys
async def connects(host, port):
    try:
        async with asyncio.timeout(float(sys.argv[1])):
            writer = (await asyncio.open_connection(host, port))[1]
            writer.close()
    except OSError:
        return False
    return True
async def main():
    print(json.dumps(await asyncio.gather(*(connects(*it) for it in json.loads(sys.argv[2])))))
asyncio.run(main())
"""

Target = tuple[str, int]
"""A pod name and a port."""


def has_own_network() -> bool:
    """Return whether this process is in a network namespace that nothing else uses."""
    return {name for _, name in socket.if_nameindex()} == {"lo"}


class Kubelet:
    """Serves the logs of pods to the API server. logs: by the names of pods."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.logs: dict[str, str] = {}

    @contextmanager
    def serve(self) -> Generator[int]:
        """Serve on a free port, and yield it."""
        logs = self.logs

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pod = self.path.split("/")[3]  # /containerLogs/NAMESPACE/POD/CONTAINER
                body = logs.get(pod, "").encode()
                self.send_response(200 if pod in logs else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                """Suppress the log."""

        keystore = self._directory / "kubelet.pem"
        keystore.write_bytes(Authority.make("kubelets").issue(NODE, hosts=("127.0.0.1",)).keystore)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keystore)
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield server.server_port
            finally:
                server.shutdown()
                thread.join()


@dataclass(frozen=True)
class Pod:
    address: str
    process: int
    directory: Path


class PodNetwork:
    """The network of a cluster with a single node. Use it in a `with` block.

    version: of the Internet Protocol, 4 or 6.
    """

    def __init__(self, kubernetes: Kubernetes, directory: Path, version: int) -> None:
        self._kubernetes = kubernetes
        self._directory = directory
        self._version = version
        self._names = directory / "names"
        self._resolver = directory / "resolv.conf"
        self._addresses = ipaddress.ip_network(_POD_ADDRESSES[version]).hosts()
        self._stack = ExitStack()
        self.pods: dict[str, Pod] = {}
        self._kubelet = Kubelet(directory)

    def __enter__(self) -> Self:
        self._names.mkdir()
        Path("/proc/sys/net", _FORWARDING[self._version]).write_text("1")
        self._kubernetes.send_request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        port = self._stack.enter_context(self._kubelet.serve())
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        self._kubernetes.send_request("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status})
        self._resolver.touch()
        dns = self.add("dns", {"k8s-app": "kube-dns"}, "kube-system")
        self._resolver.write_text(f"nameserver {dns.address}\n")
        arguments = ("--user=root", "--no-resolv", "--no-hosts", f"--hostsdir={self._names}")
        self.start(["dnsmasq", "--no-daemon", "--pid-file=", *arguments], "dns")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, name: str, *names: str, namespace: str = NAMESPACE) -> Pod:
        """Place a pod of the API server on the node, and give it an address. names: additional
        names that resolve to it.
        """
        process = self.start(["unshare", "--net", "--mount", "sleep", "infinity"])
        own = Path(f"/proc/{process.pid}/ns/mnt")
        wait_until(lambda: own.readlink() != Path("/proc/self/ns/mnt").readlink(), _START_S)
        address, device = str(next(self._addresses)), f"pod{len(self.pods)}"
        gateway, bits = _GATEWAYS[self._version], {4: 32, 6: 128}[self._version]
        at_once = " nodad" if self._version == 6 else ""
        for line in (
            f"ip link add {device} type veth peer eth0 netns {process.pid}",
            f"ip address add {gateway}/{bits} dev {device}{at_once}",
            f"ip link set {device} up",
            f"ip route add {address} dev {device}",
        ):
            _run(*line.split())
        directory = self._directory / name
        directory.mkdir()
        pod = Pod(address, process.pid, directory)
        for line in (
            "ip link set lo up",
            f"ip address add {address}/{bits} dev eth0{at_once}",
            "ip link set eth0 up",
            f"ip route add {gateway} dev eth0",
            f"ip route add default via {gateway} dev eth0",
            f"mount --bind {self._resolver} /etc/resolv.conf",
        ):
            _run(*_inside(pod), *line.split())
        (self._names / name).write_text(f"{address} {' '.join((name, *names))}\n")
        self.pods[name] = pod
        self._publish(name, address, namespace)
        return pod

    def _publish(self, name: str, address: str, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
        self._kubernetes.send_request("POST", f"{path}/binding", binding)
        ready = [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready")]
        addresses: Object = {"podIP": address, "podIPs": [{"ip": address}]}
        status = {"phase": "Running", "conditions": ready, **addresses}
        self._kubernetes.send_request("PATCH", f"{path}/status", {"status": status})

    def succeed(self, name: str, log: str) -> None:
        """Complete a pod of the release, as a kubelet does when the containers have succeeded."""
        self._kubelet.logs[name] = log
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status"
        self._kubernetes.send_request("PATCH", path, {"status": {"phase": "Succeeded"}})

    def add(self, name: str, labels: Mapping[str, str], namespace: str = NAMESPACE) -> Pod:
        """Add a pod with these labels that does not belong to the release, and connect it."""
        container = {"name": "main", "image": "none", "securityContext": _RESTRICTED}
        pod: Object = {
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": {"containers": [container], "automountServiceAccountToken": False},
        }
        pods = f"/api/v1/namespaces/{namespace}/pods"
        self._kubernetes.until(
            lambda: (
                self._kubernetes.send_request("GET", f"{pods[:-5]}/serviceaccounts/default")
                is not None
            ),
            "the namespace has an account",
        )
        self._kubernetes.send_request("POST", pods, pod)
        return self.connect(name, namespace=namespace)

    def enforce(self, program: Path) -> subprocess.Popen[bytes]:
        """Enforce the network policies until the returned process ends.

        The program installs nftables rules, for which many kernels lack NFT_QUEUE; the iptables
        rule passes the same packets to the same program.
        """
        new = ("FORWARD", "-m", "conntrack", "--ctstate", "NEW")
        _run(
            {4: "iptables", 6: "ip6tables"}[self._version],
            "-A",
            *new,
            *f"-j NFQUEUE --queue-num {_QUEUE} --queue-bypass".split(),
        )
        command = [program, self._kubernetes.kubeconfig, NODE]
        process = self.start(command, log=self._directory / "policies.log")
        queues = Path("/proc/self/net/netfilter/nfnetlink_queue")
        wait_until(lambda: queues.read_text().split()[:1] == [str(_QUEUE)], _START_S)
        return process

    def start(
        self,
        command: Sequence[str | Path],
        pod: str | None = None,
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process, in the pod if there is one. It ends with this network."""
        inside = _inside(self.pods[pod]) if pod else ()
        log = log or (self._directory / f"{pod}.log" if pod else None)
        output = self._stack.enter_context(log.open("ab")) if log else subprocess.DEVNULL
        process = subprocess.Popen(
            [*inside, *command],
            env=_ENVIRONMENT | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )

        def stop() -> None:
            process.kill()
            process.wait()

        self._stack.callback(stop)
        return process

    def listen(self, pod: str, *ports: int) -> None:
        self.start([sys.executable, "-c", _LISTEN, *map(str, ports)], pod)

    def said(self, pod: str, *command: str, variables: Mapping[str, str] | None = None) -> str:
        """Run a command in the pod and return its output."""
        return _run(*_inside(self.pods[pod]), *command, variables=variables)

    def reached(
        self, pod: str, targets: Iterable[Target], timeout_s: float = _REFUSED_S
    ) -> set[Target]:
        """Return the targets that accept a connection from the pod."""
        requested = list(targets)
        addresses = json.dumps([(self.pods[name].address, port) for name, port in requested])
        reported = self.said(pod, sys.executable, "-c", _CONNECT, str(timeout_s), addresses)
        return {
            target
            for target, accepted in zip(requested, json.loads(reported), strict=True)
            if accepted
        }


def _inside(pod: Pod) -> tuple[str, ...]:
    return ("nsenter", f"--target={pod.process}", "--net", "--mount", "--")


def _run(*command: str, variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env=_ENVIRONMENT | dict(variables or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{' '.join(command[-6:])}: {done.stdout}{done.stderr}"
    return done.stdout


_RESTRICTED: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_ENVIRONMENT: Final = {
    name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "AWS_"))
} | {
    "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(Path(__file__).parents[2]),
}
