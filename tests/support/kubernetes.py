"""Run the servers of Kubernetes without nodes: etcd, the API server, its controllers and the
scheduler. The API server admits objects, and StatefulSets create pods, which stay pending.
"""

import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.chart import CHART, Object, find_helm
from tests.support.ports import free_port

ROOT: Final = Path(__file__).parents[2]
NAMESPACE: Final = "streams"
_TOKEN: Final = "of-the-tests"
_START_S: Final = 600.0
_WAIT_S: Final = 180.0


class Kubernetes:
    """Servers with all their data below `directory`, on free ports of 127.0.0.1."""

    def __init__(
        self, binaries: Path, directory: Path, service_addresses: str = "10.0.0.0/16"
    ) -> None:
        self._binaries = binaries
        self._service_addresses = service_addresses
        self._directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self._port = free_port()
        self._stack = ExitStack()
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._run(
            "etcd",
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        key = self._directory / "accounts.key"
        key.write_bytes(
            rsa.generate_private_key(65_537, 2048).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        tokens = self._directory / "tokens.csv"
        tokens.write_text(f'{_TOKEN},tests,1,"system:masters"\n')
        self._run(
            self._binaries / "kube-apiserver",
            f"--etcd-servers={client}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",  # a network namespace may not have another address
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._port}",
            f"--cert-dir={self._directory / 'certificates'}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            f"--service-cluster-ip-range={self._service_addresses}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
        )
        self.until(lambda: self._is_ready(), "the API server is ready", _START_S)
        config = self.kubeconfig
        config.write_text(json.dumps(self._kubeconfig()))
        self._run(
            self._binaries / "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--service-account-private-key-file={key}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            "--leader-elect=false",
        )
        self._run(
            self._binaries / "kube-scheduler",
            f"--kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            "--leader-elect=false",
        )
        enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": NAMESPACE, "labels": enforced}
        self.send_request("POST", "/api/v1/namespaces", {"metadata": metadata})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        self.until(
            lambda: self.send_request("GET", account) is not None, "controllers work", _START_S
        )

    def _run(self, program: str | Path, *arguments: str) -> None:
        name = Path(program).name
        log = self._stack.enter_context((self._directory / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [program, *arguments], stdout=log, stderr=log, cwd=self._directory
        )

        def stop() -> None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        self._stack.callback(stop)

    def _kubeconfig(self) -> Object:
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "insecure-skip-tls-verify": True,
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "current-context": "tests",
        }

    def _is_ready(self) -> bool:
        try:
            with self._open("GET", "/readyz", None):
                return True
        except HTTPError as error:
            error.close()
            return False
        except (URLError, ConnectionError):
            return False

    def _open(self, method: str, path: str, body: Object | None) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = Request(
            f"https://127.0.0.1:{self._port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {_TOKEN}", "Content-Type": kind},
            method=method,
        )
        return urlopen(request, timeout=_WAIT_S, context=self._tls)

    def send_request(self, method: str, path: str, body: Object | None = None) -> Any:
        """Return the response of the API server; None if the object does not exist."""
        try:
            with self._open(method, path, body) as response:
                return json.load(response)
        except HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                raise AssertionError(f"{method} {path}: {error.read().decode()}") from None

    def get(self, kind: str, name: str) -> Any:
        """Return an object in the namespace. kind: such as `apps/v1/statefulsets` or `v1/pods`."""
        group, _, plural = kind.rpartition("/")
        root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
        return self.send_request(
            "GET", f"{root}/namespaces/{NAMESPACE}/{plural}/{name}".rstrip("/")
        )

    def scale(self, name: str, replicas: int) -> None:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{name}"
        self.send_request("PATCH", path, {"spec": {"replicas": replicas}})

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.get(kind, "")["items"]}

    def until(self, holds: Callable[[], bool], what: str, timeout_s: float = _WAIT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
            time.sleep(0.1)

    def helm(
        self, action: str, values: Object | None = None, *more: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Install, upgrade, test or uninstall the release."""
        given = [
            part
            for key, value in (values or {}).items()
            for part in ("--set-json", f"{key}={json.dumps(value)}")
        ]
        chart = [] if action in {"uninstall", "test"} else [str(CHART)]
        done = subprocess.run(
            [find_helm(), action, "penstock", *chart, "-n", NAMESPACE, *given, *more],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_S,
        )
        assert not check or done.returncode == 0, done.stderr
        return done
