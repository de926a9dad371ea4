"""Check that the zone of a Kubernetes node becomes `broker.rack` in a config file that brokers
accept. The zone comes over HTTPS from a stand-in for the Kubernetes API.
"""

import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.config import BrokerConfig
from penstock.deploy.node.config.load import load
from penstock.deploy.node.kubernetes_zone import main, with_rack, zone_of

NODE = {"metadata": {"name": "node-1", "labels": {"topology.kubernetes.io/zone": "eu-1a"}}}
TABLES = '[broker]\n"num.partitions" = 3\n\n[controller]\n"auto.balance.enable" = true\n'


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_allowed = (
            self.headers["Authorization"] == "Bearer secret" and self.path == "/api/v1/nodes/node-1"
        )
        body = json.dumps(NODE).encode()
        self.send_response(200 if is_allowed else 403)
        self.send_header("Content-Length", str(len(body) if is_allowed else 0))
        self.end_headers()
        if is_allowed:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[dict[str, str]]:
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.crt"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "penstock.toml").write_text(TABLES)
    server = http.server.HTTPServer(("127.0.0.1", 0), Api)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_port),
        "NODE_NAME": "node-1",
    }
    server.shutdown()
    thread.join()
    server.server_close()


def run(directory: Path, environment: dict[str, str]) -> int:
    return main(
        ["--config", f"{directory}/penstock.toml", "--out", f"{directory}/out.toml"],
        environment,
        directory,
    )


def test_the_zone_of_the_node_becomes_the_rack_of_the_broker(
    tmp_path: Path, kubernetes: dict[str, str]
) -> None:
    assert run(tmp_path, kubernetes) == 0
    variables = {"PENSTOCK_STORE": "memory:", "PENSTOCK_CONFIG": str(tmp_path / "out.toml")}
    broker = load("broker", [], variables).part(BrokerConfig)
    assert (broker.rack, broker.num_partitions) == ("eu-1a", 3)
    load("controller", [], {**variables, "PENSTOCK_METADATA_LOG_DIR": str(tmp_path)})


def test_an_api_error_is_reported_and_nothing_is_written(
    tmp_path: Path, kubernetes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, {**kubernetes, "NODE_NAME": "other"}) == 1
    assert "check that this service account may get nodes" in capsys.readouterr().err
    assert not (tmp_path / "out.toml").exists()


def test_no_rack_is_added_if_the_zone_is_unknown_or_a_rack_is_set() -> None:
    assert zone_of({"metadata": {}}) == ""
    assert with_rack(TABLES, "") == TABLES
    own = '[broker]\n"broker.rack" = "mine"\n'
    assert with_rack(own, "eu-1a") == own
    assert '"broker.rack" = "eu-1a"' in with_rack("", "eu-1a")
