"""Render the chart for a running release: Helm looks up existing objects. A small server stands in
for the API server, with the StatefulSets that the chart itself rendered; `make kubernetes` uses a
real one.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.chart import (
    CHART,
    KUBERNETES,
    NAMESPACE,
    RELEASE,
    Object,
    helm,
    named,
    parsed,
    render,
)

BUCKET: Object = {"store.bucket": "records", "security.allowInsecure": True}
_GROUP = {"groupVersion": "apps/v1", "version": "v1"}
_DISCOVERY: dict[str, Object] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "apps", "versions": [_GROUP], "preferredVersion": _GROUP}],
    },
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "groupVersion": "apps/v1",
        "resources": [
            {
                "name": "statefulsets",
                "singularName": "statefulset",
                "namespaced": True,
                "kind": "StatefulSet",
                "verbs": ["get", "list"],
            }
        ],
    },
}


@contextmanager
def running(values: Object, **replicas: int) -> Iterator[str]:
    """Serve the StatefulSets of a release with these values. replicas: the current
    replica counts.
    """
    responses = dict(_DISCOVERY)
    objects = render(values)
    for role in ("broker", "controller"):
        live = named(objects, "StatefulSet", f"penstock-{role}")
        live["spec"]["replicas"] = replicas.get(role, live["spec"].get("replicas", 3))
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/penstock-{role}"
        responses[path] = live

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = responses.get(self.path.partition("?")[0])
            body = json.dumps(found or {"kind": "Status", "code": 404, "reason": "NotFound"})
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def upgrade(server: str, values: Object, *, check: bool = True) -> Any:
    """Return what `helm upgrade` would send, or with check=False the completed process."""
    given = [
        part
        for key, value in values.items()
        for part in ("--set-json", f"{key}={json.dumps(value)}")
    ]
    done = helm(
        "template",
        RELEASE,
        CHART,
        "-n",
        NAMESPACE,
        "--is-upgrade",
        "--dry-run=server",
        "--kube-version",
        KUBERNETES,
        "--kube-apiserver",
        server,
        *given,
        check=check,
    )
    return parsed(done.stdout) if check else done


def broker_count(objects: list[Object]) -> int:
    return int(named(objects, "StatefulSet", "penstock-broker")["spec"]["replicas"])


def test_autoscaling_starts_with_the_running_brokers() -> None:
    automatic = {**BUCKET, "brokers.autoscaling.enabled": True}
    with running(BUCKET, broker=6) as server:
        assert broker_count(upgrade(server, automatic)) == 6
        assert broker_count(upgrade(server, BUCKET)) == 3
    with running({**BUCKET, "recover.enabled": True}) as server:
        assert broker_count(upgrade(server, automatic)) == 3, "an autoscaler leaves 0 alone"
    assert "replicas" not in named(render(automatic), "StatefulSet", "penstock-broker")["spec"]


def test_controllers_are_not_added_while_the_quorum_is_being_founded() -> None:
    five = {**BUCKET, "controllers.replicas": 5}
    with running(BUCKET) as server:
        refused = upgrade(server, five, check=False)
        assert "cannot change from 3 to 5 while controllers.founding=true" in refused.stderr
        upgrade(server, {**five, "controllers.founding": False})
        upgrade(server, {**five, "recover.enabled": True})
        upgrade(server, BUCKET)


def test_the_volume_size_cannot_change() -> None:
    with running(BUCKET) as server:
        refused = upgrade(server, {**BUCKET, "controllers.storage.size": "4Gi"}, check=False)
        assert "controllers.storage.size cannot change from 2Gi to 4Gi" in refused.stderr
