"""Render the chart with Helm, and derive the command and environment of a container as a kubelet
does.

Tests are skipped if both Helm and Go are missing, and fail if Go could compile Helm
(`tools/ensure-helm.sh`).
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "penstock"
KUBERNETES = "1.34.0"
RELEASE = "penstock"
NAMESPACE = "streams"
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")

Object = dict[str, Any]


@cache
def find_helm() -> str:
    found = subprocess.run(
        [ROOT / "tools" / "ensure-helm.sh", "--find"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def helm(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    if not find_helm() and (shutil.which("go") or Path("/usr/local/go/bin/go").exists()):
        pytest.fail("helm is missing though Go is at hand: tools/ensure-helm.sh compiles it, once")
    if not find_helm():
        pytest.skip("helm and Go are missing: the chart was NOT tested")
    done = subprocess.run(
        [find_helm(), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def render(
    values: Object | None = None,
    *files: Path,
    kubernetes: str = KUBERNETES,
    kinds: Sequence[str] = (),
) -> list[Object]:
    """Return the rendered objects in Helm's order, including hooks.

    kinds: the API kinds that the cluster serves, as group/version/Kind; without it, there is no
    cluster.
    """
    return parsed(template(values, *files, kubernetes=kubernetes, kinds=kinds).stdout)


def parsed(text: str) -> list[Object]:
    """Return the objects of a YAML stream. libyaml parses the dashboards ten times faster than the
    pure Python parser.
    """
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def template(
    values: Object | None = None,
    *files: Path,
    check: bool = True,
    kubernetes: str = KUBERNETES,
    kinds: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    given = [part for file in files for part in ("-f", str(file))]
    for key, value in (values or {}).items():
        given += ["--set-json", f"{key}={json.dumps(value)}"]
    for kind in kinds:
        given += ["--api-versions", kind]
    return helm(
        "template",
        RELEASE,
        CHART,
        "-n",
        NAMESPACE,
        "--kube-version",
        kubernetes,
        *given,
        check=check,
    )


def named(objects: list[Object], kind: str, name: str) -> Object:
    return next(it for it in objects if it["kind"] == kind and it["metadata"]["name"] == name)


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [it for it in objects if it["kind"] == kind]


def pod_of(workload: Object) -> Object:
    """Return the pod spec of the workload."""
    return workload["spec"] if workload["kind"] == "Pod" else workload["spec"]["template"]["spec"]


@dataclass
class Pod:
    """A pod, with the fields used by the downward API."""

    name: str
    fields: dict[str, str] = field(default_factory=dict)
    """Values by field path. Labels that the pod does not have are empty."""

    @classmethod
    def of(
        cls, workload: Object, ordinal: int, *, zone: str = "", host_ip: str = "127.0.0.1"
    ) -> "Pod":
        name = f"{workload['metadata']['name']}-{ordinal}"
        return cls(
            name,
            {
                "metadata.name": name,
                "metadata.uid": f"uid-of-{name}",
                "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal),
                "metadata.labels['topology.kubernetes.io/zone']": zone,
                "status.hostIP": host_ip,
                "spec.nodeName": "node-1",
            },
        )


def environment(container: Object, pod: Pod, objects: list[Object]) -> dict[str, str]:
    """Return the variables, with references to fields, secrets and earlier variables resolved as
    the kubelet does.
    """
    found: dict[str, str] = {}
    for variable in container.get("env", []):
        if "value" in variable:
            found[variable["name"]] = _expanded(variable["value"], found)
        elif "fieldRef" in variable["valueFrom"]:
            found[variable["name"]] = pod.fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            reference = variable["valueFrom"]["secretKeyRef"]
            found[variable["name"]] = named(objects, "Secret", reference["name"])["stringData"][
                reference["key"]
            ]
    return found


def command(
    container: Object, variables: dict[str, str], entrypoint: tuple[str, ...] = ("penstock",)
) -> list[str]:
    """Return the words of the command line: `command` replaces the image's entrypoint, `args` come
    after it.
    """
    words = [*container.get("command", entrypoint), *container.get("args", [])]
    return [_expanded(str(word), variables) for word in words]


def _expanded(text: str, variables: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)
