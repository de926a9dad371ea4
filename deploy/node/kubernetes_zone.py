"""Add `broker.rack`, the zone of a pod's Kubernetes node, to the configuration file of a broker.

Runs as an init container, because brokers must not have the permission to read nodes: `python -m
penstock.deploy.node.kubernetes_zone --config FILE --out FILE`. A `broker.rack` in the file takes
precedence. If Kubernetes does not respond, the container fails and is retried.
"""

import argparse
import json
import os
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.base.client_tls import client_tls

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S: Final = 10.0


def zone_of(node: Mapping[str, Any]) -> str:
    """Return the zone of a Node object, or ""."""
    return str(node.get("metadata", {}).get("labels", {}).get(ZONE_LABEL, ""))


def with_rack(config: str, zone: str) -> str:
    """Add the zone as broker.rack, in a new `[broker]` table if there is none."""
    given: Any = tomllib.loads(config)
    broker: Any = given.get("broker", {})
    if not zone or "broker.rack" in broker or "broker.rack" in given:
        return config
    line = f'"broker.rack" = {json.dumps(zone)}\n'
    if "broker" not in given:
        return f"{config}\n[broker]\n{line}"
    return config.replace("[broker]\n", f"[broker]\n{line}", 1)


def fetch_node(
    name: str, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT
) -> Mapping[str, Any]:
    """Read a Node object. Raises OSError if Kubernetes does not respond or rejects the request."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    token = (account / "token").read_text().strip()
    context = client_tls(str(account / "ca.crt"))
    request = urllib.request.Request(
        f"https://{host}:{port}/api/v1/nodes/{name}", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as response:  # noqa: S310 - the scheme is fixed above
            node: Mapping[str, Any] = json.load(response)
            return node
    except urllib.error.HTTPError as refused:
        refused.close()
        raise


def main(
    arguments: list[str] | None = None,
    environment: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> int:
    """Run the process; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.deploy.node.kubernetes_zone", allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    requested = parser.parse_args(arguments)
    name = environment["NODE_NAME"]
    try:
        zone = zone_of(fetch_node(name, environment, account))
    except OSError as error:
        print(
            f"error: cannot read node {name}: {error}; check that this service account may"
            " get nodes",
            file=sys.stderr,
        )
        return 1
    requested.out.write_text(with_rack(requested.config.read_text(), zone))
    print(f"node {name} is in zone {zone or '(none)'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
