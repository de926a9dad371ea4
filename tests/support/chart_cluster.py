"""Run the rendered chart as processes on this machine, with ports of 127.0.0.1 as pod names.

with ChartCluster(objects, tmp_path) as cluster: cluster.wait_ready(); cluster.roll("broker")

Only addresses and directories are replaced. Pods stop as in the kubelet.
"""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from tests.support.chart import NAMESPACE, Object, Pod, command, environment, named, of_kind, pod_of
from tests.support.cli import run_here
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

READY_S = PATIENCE_S
"""Timeout for one pod. A dozen processes start at once, on busy machines."""
_BIN = Path(sys.executable).parent
_ADDRESS = re.compile(rf"([a-z0-9-]+)(?:\.[a-z0-9-]+)?\.{NAMESPACE}\.svc\.cluster\.local:([0-9]+)")
_BOUND = re.compile(r"0\.0\.0\.0:([0-9]+)")


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    container: Object
    grace_s: int
    log: Path


class ChartCluster:
    def __init__(
        self, objects: list[Object], directory: Path, secrets: Mapping[str, Path] | None = None
    ) -> None:
        """secrets: the secret files that pods mount, as directories by name."""
        self._objects = objects
        self._secrets = secrets or {}
        self._directory = directory
        self._ports: dict[tuple[str, int], int] = {}
        """Local ports by pod and container port."""
        self.running: dict[str, Running] = {}
        config = named(objects, "ConfigMap", "penstock-config")["data"]
        for name, text in config.items():
            (directory / name).write_text(text)

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.__exit__(None)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for running in self.running.values():
            running.process.kill()
            running.process.wait()
        if kind is not None:
            for name, running in self.running.items():
                sys.stderr.write(f"--- {name}\n{running.log.read_text()[-3_000:]}\n")

    def _workload(self, name: str) -> Object:
        return next(
            it
            for it in self._objects
            if it["kind"] in {"StatefulSet", "Deployment", "Pod", "Job"}
            and it["metadata"]["name"] == name
        )

    def port(self, pod: str, port: int) -> int:
        return self._ports.setdefault((pod, port), free_port())

    def pod_name(self, service: str) -> str:
        """Return the pod for a DNS name: the named pod, or the first one of a Service."""
        return (
            service
            if service[-1].isdigit()
            else {"penstock": "penstock-broker-0", "penstock-moto": "penstock-moto-0"}[service]
        )

    def _mounts(self, workload: Object) -> dict[str, str]:
        """Return the local path of each mounted secret of a pod, by mount path."""
        names = {
            volume["name"]: volume["secret"]["secretName"]
            for volume in pod_of(workload)["volumes"]
            if "secret" in volume
        }
        return {
            mount["mountPath"]: str(self._secrets[names[mount["name"]]])
            for mount in pod_of(workload)["containers"][0]["volumeMounts"]
            if mount["name"] in names
        }

    def _here(self, text: str, pod: str, mounts: Mapping[str, str]) -> str:
        """Replace names and directories in the text by local ones."""
        for mounted, directory in mounts.items():
            text = text.replace(mounted, directory)
        is_quoted = "%3A%2F%2F" in text
        text = unquote(text) if is_quoted else text
        text = _ADDRESS.sub(
            lambda found: f"127.0.0.1:{self.port(self.pod_name(found[1]), int(found[2]))}", text
        )
        text = _BOUND.sub(lambda found: f"127.0.0.1:{self.port(pod, int(found[1]))}", text)
        text = text.replace("/etc/penstock", str(self._directory)).replace(
            "/var/lib/penstock", str(self._directory / pod)
        )
        if "\n" in text:  # a script
            text = re.sub(r"(?<![\w.-])/tmp/(?!pytest)", f"{self._directory}/{pod}-", text)
        if is_quoted:
            begin, _, endpoint = text.partition("endpoint=")
            text = f"{begin}endpoint={quote(endpoint, safe='')}"
        return text

    def start_all(self) -> None:
        """Start all pods. The S3 server is started first, because the other pods retry with growing
        pauses until it responds.
        """
        for kind in ("Deployment", "StatefulSet"):
            for workload in of_kind(self._objects, kind):
                for ordinal in range(workload["spec"]["replicas"]):
                    self.start(workload["metadata"]["name"], ordinal)
            if kind == "Deployment":
                self.wait_ready()

    def start(self, workload_name: str, ordinal: int) -> None:
        workload = self._workload(workload_name)
        pod = Pod.of(workload, ordinal, zone=f"zone-{ordinal % 3}")
        container = pod_of(workload)["containers"][0]
        log = self._directory / f"{pod.name}.log"
        variables, words = self._command(workload, pod)
        if "0.0.0.0" in words:  # host and port are separate words in the command of the S3 server
            words[words.index("0.0.0.0")] = "127.0.0.1"
            words[-1] = str(self.port(pod.name, int(words[-1])))
        with log.open("ab") as file:
            process = subprocess.Popen(
                self._found(words), env=_ENVIRONMENT | variables, stderr=file, stdout=file
            )
        self.running[pod.name] = Running(
            process, container, pod_of(workload).get("terminationGracePeriodSeconds", 30), log
        )

    def _command(self, workload: Object, pod: Pod) -> tuple[dict[str, str], list[str]]:
        """Return the variables and the command line of a pod."""
        container, mounts = pod_of(workload)["containers"][0], self._mounts(workload)
        variables = {
            name: self._here(text, pod.name, mounts)
            for name, text in environment(container, pod, self._objects).items()
        }
        words = [self._here(word, pod.name, mounts) for word in command(container, variables)]
        return variables, words

    @staticmethod
    def _found(words: list[str]) -> list[str]:
        programs = {"penstock": [str(_BIN / "penstock")], "python": [sys.executable]}
        return [*programs.get(words[0], [words[0]]), *words[1:]]

    def stop(self, pod: str) -> int:
        """Stop the pod as the kubelet does, with a longer grace period on slow machines; return the
        exit code.
        """
        running = self.running.pop(pod)
        hook = running.container.get("lifecycle", {}).get("preStop")
        if hook is not None:
            assert hook["exec"]["command"][0] == "sleep"
            subprocess.run(hook["exec"]["command"], check=True)
        running.process.terminate()
        try:
            return running.process.wait(max(running.grace_s, PATIENCE_S))
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
            raise

    def probe(self, pod: str, which: str) -> tuple[int, str]:
        """Return status and text of a probe; the status is 0 without a response."""
        container = self.running[pod].container
        requested = container[f"{which}Probe"]["httpGet"]
        port = next(
            it["containerPort"] for it in container["ports"] if it["name"] == requested["port"]
        )
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port(pod, port)}{requested['path']}", timeout=PATIENCE_S
            ) as response:
                return int(response.status), response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def wait_ready(self, *pods: str, seconds: float = READY_S) -> None:
        """Wait until every probe of these pods, by default of all pods, succeeds. Fail if a pod
        exits.
        """
        for pod in pods or tuple(self.running):
            deadline = time.monotonic() + seconds
            for which in ("startup", "readiness", "liveness"):
                while (said := self.probe(pod, which))[0] != 200:
                    log = self.running[pod].log
                    assert self.running[pod].process.poll() is None, (
                        f"{pod} ended:\n{log.read_text()[-2_000:]}"
                    )
                    assert time.monotonic() < deadline, (
                        f"{pod}: {which}: {said}\n{log.read_text()[-2_000:]}"
                    )
                    time.sleep(0.05)

    def roll(self, role: str) -> None:
        """Upgrade the pods one by one, from the highest number down; each must be ready before the
        next one stops.
        """
        name = f"penstock-{role}"
        for ordinal in reversed(range(sum(pod.startswith(f"{name}-") for pod in self.running))):
            assert self.stop(f"{name}-{ordinal}") == 0
            self.start(name, ordinal)
            self.wait_ready(f"{name}-{ordinal}")

    def scale(self, role: str, count: int) -> None:
        """Start or stop pods of the role until there are `count`; those with the highest numbers
        stop first.
        """
        name = f"penstock-{role}"
        present = sum(pod.startswith(f"{name}-") for pod in self.running)
        for ordinal in range(present, count):
            self.start(name, ordinal)
        for ordinal in range(count, present):
            assert self.stop(f"{name}-{ordinal}") == 0
        self.wait_ready()

    def upgrade(self, objects: list[Object]) -> None:
        """Use these objects for pods that start from now on."""
        self._objects = objects

    def command(
        self, *arguments: str, retry: bool = False, variables: Mapping[str, str] | None = None
    ) -> str:
        """Run a `penstock` command and return its output.

        retry: repeat it until it succeeds. variables: additional environment variables.
        """
        deadline = time.monotonic() + READY_S
        while True:
            done = run_here(*arguments, **(variables or {}))
            if done.returncode == 0:
                return done.stdout
            assert retry, done.stderr
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.2)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port('penstock-broker-0', 9092)}"

    def run_test(self) -> str:
        """Run the test of `helm test` with its pod's command and environment; return the output."""
        workload = next(
            it
            for it in of_kind(self._objects, "Pod")
            if it["metadata"]["annotations"]["helm.sh/hook"] == "test"
        )
        return self._run(workload)

    def run_job(self, name: str) -> str:
        """Run the job; return its output."""
        return self._run(self._workload(name))

    def _run(self, workload: Object) -> str:
        variables, words = self._command(workload, Pod.of(workload, 0))
        done = subprocess.run(
            words,
            env=_ENVIRONMENT | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "AWS_"))
} | {
    "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "PENSTOCK_SUPERVISOR_PID": str(os.getpid()),
}
"""The environment without the variables that the chart has to set. The last entry makes the
processes exit with this process.
"""
