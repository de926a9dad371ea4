"""Check that pods contain what users add through values, and that nodes accept it."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from moto.server import ThreadedMotoServer

from penstock.broker.config import BrokerConfig
from penstock.deploy.node.config.load import load
from penstock.objectstore.config import S3Config
from penstock.objectstore.url import parse_store_url
from tests.helm.test_helm_objects import BUCKET, EVERYTHING, OWN_CONTAINER, SECURE, variables_of
from tests.support.chart import (
    NAMESPACE,
    ROOT,
    Object,
    Pod,
    command,
    environment,
    named,
    of_kind,
    pod_of,
    render,
    template,
)
from tests.support.waiting import PATIENCE_S

OWN: Object = {**BUCKET, "store.caSecret": "store-ca", "bindAddress": "[::]"}
KMS_KEY = "arn:aws:kms:eu-west-1:111122223333:key/0a-1b"
_HALF: Object = {"rollingUpdate": {"partition": 2}}


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_user_additions_are_in_the_pods(role: str) -> None:
    objects = render(EVERYTHING)
    workload = named(objects, "StatefulSet", f"penstock-{role}")["spec"]
    pod = workload["template"]["spec"]
    node, beside = pod["containers"]
    assert beside == OWN_CONTAINER | {"name": "beside"}
    assert OWN_CONTAINER | {"name": "before"} in pod["initContainers"]
    assert {"name": "own", "emptyDir": {"sizeLimit": "1Mi"}} in pod["volumes"]
    assert {"name": "own", "mountPath": "/own"} in node["volumeMounts"]
    assert node["envFrom"] == [{"secretRef": {"name": "more"}}]
    assert ({"name": "TZ", "value": "UTC"} in node["env"]) == (role == "controller")
    startup, liveness = node["startupProbe"], node["livenessProbe"]
    assert (startup["failureThreshold"], startup["httpGet"]["path"]) == (300, "/startz")
    assert liveness["failureThreshold"] == 6
    assert workload["updateStrategy"] == {"type": "OnDelete"}
    (constraint,) = pod["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["maxSkew"]) == ("rack", 1)
    selected = constraint["labelSelector"]["matchLabels"]
    assert selected.items() <= workload["template"]["metadata"]["labels"].items()
    assert named(objects, "ConfigMap", "penstock-own")["data"] == {"a": "b"}


def test_deleted_pods_are_recreated_from_the_new_template() -> None:
    """During a rolling upgrade without a partition, Kubernetes would use the old template."""
    for values, partition in ((BUCKET, 0), ({**BUCKET, "brokers.updateStrategy": _HALF}, 2)):
        strategy = named(render(values), "StatefulSet", "penstock-broker")["spec"]["updateStrategy"]
        assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}


@pytest.mark.parametrize(
    ("parameters", "requested"),
    [
        ({"sse": "AES256"}, ("AES256", None, None)),
        (
            {"sse": "aws:kms", "sse_kms_key_id": KMS_KEY, "sse_bucket_key": True},
            ("aws:kms", KMS_KEY, True),
        ),
    ],
)
def test_all_writers_to_the_store_request_encryption(
    parameters: Object, requested: tuple[str, str | None, bool | None]
) -> None:
    """Brokers, controllers and the recovery job, with SSE-S3 and SSE-KMS."""
    values = {**BUCKET, "store.parameters": parameters}
    job = named(render({**values, "recover.enabled": True}), "Job", "penstock-recover-1")
    (container,) = pod_of(job)["containers"]
    words = command(container, environment(container, Pod.of(job, 0), []))
    (source,) = (word.removeprefix("--from=") for word in words if word.startswith("--from="))
    objects = render(values)
    nodes = [variables_of(objects, role, 0)["PENSTOCK_STORE"] for role in ("broker", "controller")]
    for url in (*nodes, source):
        store = parse_store_url(url)
        assert isinstance(store, S3Config)
        assert (store.sse, store.sse_kms_key_id, store.sse_bucket_key) == requested


def test_all_readers_of_wals_get_the_wal_store() -> None:
    url = "s3://wals?region=eu-west-1"
    objects = render({**BUCKET, "wal.store": url, "recover.enabled": True})
    for kind, name in _NODES:
        (container,) = named(objects, kind, name)["spec"]["template"]["spec"]["containers"]
        assert {"name": "PENSTOCK_WAL_STORE", "value": url} in container["env"]


def test_all_readers_of_wals_mount_the_wal_volume() -> None:
    objects = render({**BUCKET, "wal.claim": "wals-rwx", "recover.enabled": True})
    for kind, name in _NODES:
        pod = named(objects, kind, name)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        url = {"name": "PENSTOCK_WAL_STORE", "value": "file:/var/lib/penstock-wals"}
        assert url in container["env"]
        assert {"name": "wals", "mountPath": "/var/lib/penstock-wals"} in container["volumeMounts"]
        volume = {"name": "wals", "persistentVolumeClaim": {"claimName": "wals-rwx"}}
        assert volume in pod["volumes"]
        assert pod["securityContext"]["runAsUser"] == 10001


def test_wals_cannot_be_in_a_bucket_and_on_a_volume() -> None:
    done = template({**BUCKET, "wal.claim": "wals-rwx", "wal.store": "s3://wals"}, check=False)
    assert done.returncode != 0
    assert "wal.store and wal.claim are both set" in done.stderr


_IDENTITY = "azure.workload.identity/use"
_NODES = (
    ("StatefulSet", "penstock-broker"),
    ("StatefulSet", "penstock-controller"),
    ("Job", "penstock-recover-1"),
)


@pytest.mark.parametrize(
    ("values", "url", "variables", "labelled"),
    [
        ({"type": "gs"}, "gs://records", [], False),
        (
            {"type": "gs", "prefix": "a", "credentials.existingSecret": "key"},
            "gs://records/a",
            ["GOOGLE_APPLICATION_CREDENTIALS"],
            False,
        ),
        ({"type": "az", "account": "acct"}, "az://acct/records", [], True),
        (
            {"type": "az", "account": "acct", "credentials.existingSecret": "key"},
            "az://acct/records",
            ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"],
            False,
        ),
    ],
)
def test_a_release_runs_on_google_and_azure(
    values: Object, url: str, variables: list[str], labelled: bool
) -> None:
    """Credentials come from the identity of the service account, or from a secret."""
    given = {**BUCKET, **{f"store.{name}": value for name, value in values.items()}}
    objects = render({**given, "recover.enabled": True})
    for kind, name in _NODES:
        template = named(objects, kind, name)["spec"]["template"]
        pod, labels = template["spec"], template["metadata"]["labels"]
        assert (labels.get(_IDENTITY) == "true") == labelled
        found = {item["name"]: item for item in pod["containers"][0]["env"]}
        assert parse_store_url(found["PENSTOCK_STORE"]["value"]) == parse_store_url(url)
        clouds = ("AWS_", "GOOGLE_", "AZURE_")
        assert [it for it in found if it.startswith(clouds)] == variables
        if "GOOGLE_APPLICATION_CREDENTIALS" in variables:
            directory, _, file = found[variables[0]]["value"].rpartition("/")
            mounts = {it["mountPath"]: it["name"] for it in pod["containers"][0]["volumeMounts"]}
            volumes = {it["name"]: it for it in pod["volumes"]}
            assert volumes[mounts[directory]]["secret"]["secretName"] == "key"
            assert file == "credentials.json"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"store.type": "az"}, "store.account is missing"),
        ({"store.type": "gs", "store.region": "eu"}, "are for store.type=s3, not gs"),
        ({"store.type": "gs", "moto.enabled": True}, "moto.enabled needs store.type=s3"),
    ],
)
def test_values_of_another_cloud_are_rejected(values: Object, says: str) -> None:
    assert says in template({**BUCKET, **values}, check=False).stderr


def test_nodes_trust_the_ca_of_the_store() -> None:
    objects = render(OWN)
    for role in ("broker", "controller"):
        pod = pod_of(named(objects, "StatefulSet", f"penstock-{role}"))
        volumes = {it["name"]: it for it in pod["volumes"]}
        mounts = {it["mountPath"]: it["name"] for it in pod["containers"][0]["volumeMounts"]}
        directory, _, file = variables_of(objects, role, 0)["AWS_CA_BUNDLE"].rpartition("/")
        assert volumes[mounts[directory]]["secret"]["secretName"] == "store-ca"
        assert file == "ca.crt"


def test_nodes_listen_on_ipv6_only_pods() -> None:
    given = {
        name: text
        for name, text in variables_of(render(OWN), "broker", 0).items()
        if name.startswith("PENSTOCK_")
    }
    assert given["PENSTOCK_HEALTH_LISTENER"] == "[::]:9404"
    bound = load("broker", [], given | {"PENSTOCK_CONFIG": ""}).part(BrokerConfig).bound
    assert {listener.host for listener in bound} == {"::"}
    controller = variables_of(render(OWN), "controller", 0)
    assert controller["PENSTOCK_LISTENERS"] == "CONTROLLER://[::]:9093"


def test_security_contexts_can_be_overridden() -> None:
    own = {"capabilities.add": ["NET_BIND_SERVICE"], "readOnlyRootFilesystem": False}
    values = {f"containerSecurityContext.{name}": value for name, value in own.items()}
    pod = pod_of(named(render(SECURE | values), "StatefulSet", "penstock-broker"))
    security = pod["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}
    assert security["readOnlyRootFilesystem"] is False


def test_the_error_of_a_controller_contains_the_missing_bucket(tmp_path: Path) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        variables = variables_of(render({**BUCKET, "controllers.replicas": 1}), "controller", 0)
        done = subprocess.run(
            [Path(sys.executable).parent / "penstock", "controller"],
            env=variables
            | {
                "PENSTOCK_STORE": f"s3://never-made?region=x&endpoint={quote(endpoint, safe='')}",
                "PENSTOCK_METADATA_LOG_DIR": str(tmp_path),
                "PENSTOCK_LISTENERS": "CONTROLLER://127.0.0.1:0",
                "PENSTOCK_HEALTH_LISTENER": "127.0.0.1:0",
                "PENSTOCK_CONFIG": "",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    finally:
        server.stop()
    assert done.returncode == 1
    assert f"error: bucket 'never-made' does not exist at {endpoint}" in done.stderr
    assert "create-bucket --bucket never-made" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_table_runner_uses_options_of_the_command() -> None:
    runner = named(render(EVERYTHING), "Deployment", "penstock-table-runner")
    (container,) = pod_of(runner)["containers"]
    assert container["args"] == [
        "table",
        "run",
        "--warehouse=s3://lake/tables?region=eu-west-1",
        "--stop-timeout=30",
        "--workers=4",
        f"--cluster-id={NAMESPACE}-penstock",
        "--catalog-type=rest",
        "--catalog-uri=https://catalog.example.com/v1",
        "--catalog-property=rest.sigv4-enabled=true",
        "--catalog-property=warehouse=lake",
        "--schema-registry=https://registry.example.com",
        "--skip-lost",
    ]
    page = (ROOT / "docs/reference/cli/table.md").read_text()
    (reference,) = re.findall(r"## `penstock table run`(.*?)(?:\n## |\Z)", page, re.DOTALL)
    assert all(f"* `{word.partition('=')[0]}" in reference for word in container["args"][2:])
    given = {item["name"] for item in container["env"]}
    assert {"PENSTOCK_STORE", "PENSTOCK_HEALTH_LISTENER"} <= given
    assert "env var: PENSTOCK_HEALTH_LISTENER" in reference
    assert runner["spec"]["strategy"] == {"type": "Recreate"}
    assert runner["spec"]["template"]["metadata"]["labels"]["team"] == "lake"
    assert of_kind(render(BUCKET), "Deployment") == []


def test_pods_other_than_nodes_mount_no_node_certificates() -> None:
    """cert-manager issues none for them."""
    objects = render(
        {**SECURE, "tableRunner.enabled": True, "tableRunner.warehouse": "s3://lake"}
    ) + render({**SECURE, "recover.enabled": True})
    for kind, name in (("Deployment", "penstock-table-runner"), ("Job", "penstock-recover-1")):
        volumes = pod_of(named(objects, kind, name))["volumes"]
        assert not any(volume["name"] == "node-tls" for volume in volumes)
