"""Every node serves the console on its health listener, and requires a login if clients
need one.
"""

import asyncio
import os
import urllib.request
from pathlib import Path

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from penstock.deploy.console.guard import BODY_BYTES_MAX
from penstock.objectstore.directory import DirectoryStore
from tests.console.conftest import login
from tests.console.test_console_pages import wait_for_text
from tests.support.broker_process import broker_process
from tests.support.browser import console_errors
from tests.support.cluster import Cluster
from tests.support.console import Visitor
from tests.support.metered_cluster import MeteredCluster
from tests.support.ports import free_port
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, SecureFiles
from tests.support.waiting import PATIENCE_S, wait_until


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_every_node_serves_the_console(chrome: Chrome, tmp_path: Path) -> None:
    """The console process starts with the first visit, and ends with the node, even if that is
    killed.
    """
    cluster = MeteredCluster(tmp_path, brokers=1, controllers=1)
    access = ("--console-access", "read", "--console-bootstrap-servers", cluster.bootstrap)
    cluster.arguments = (*access, "--allow-insecure")
    with cluster:
        consoles: dict[str, int] = {}
        for name, port in cluster.ports.items():
            assert children(cluster.pid(name)) == []
            url = f"http://127.0.0.1:{port}"
            console_errors(chrome)
            chrome.get(f"{url}/console")
            wait_for_text(chrome, "live")
            assert chrome.current_url == f"{url}/console/"
            chrome.find_element(By.LINK_TEXT, "Topics").click()
            wait_for_text(chrome, "There are no topics.")
            assert chrome.current_url == f"{url}/console/topics"
            assert "SQL" not in chrome.find_element(By.TAG_NAME, "nav").text
            assert console_errors(chrome) == []
            assert cluster.scrape(name)
            (consoles[name],) = children(cluster.pid(name))
        for name, child in consoles.items():
            cluster.kill(name)
            wait_until(lambda child=child: not is_running(child))


async def test_login_is_required_where_clients_need_one(tmp_path: Path) -> None:
    """Without a login, a node with SASL serves only probes and metrics."""
    files = SecureFiles(tmp_path / "security")
    port, health = free_port(), free_port()
    properties = tmp_path / "console.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username={BROKER_USER}\nsasl.password={BROKER_PASSWORD}\n"
    )
    settings = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.users.file": str(files.users),
        "sasl.inter.broker.username": BROKER_USER,
        "health.listener": f"127.0.0.1:{health}",
        "console.access": "change",
        "console.bootstrap.servers": f"127.0.0.1:{port}",
        "console.command.config": str(properties),
    }
    store = tmp_path / "store"
    async with (
        Cluster(tmp_path, brokers=0, store=DirectoryStore(str(store))) as cluster,
        broker_process(cluster, f"file:{store}", settings) as broker,
    ):
        await asyncio.to_thread(visit, f"http://127.0.0.1:{health}")
        assert [BROKER_PASSWORD in line for line in broker.lines].count(True) == 0


def visit(node: str) -> None:
    """Log in, create a topic, and send more than the node reads at once."""
    stranger = Visitor(node)
    for path in ("/console/", "/console/topics", "/console/security/users"):
        response = stranger.get(path)
        assert response.status == 303
        assert response.headers["location"].startswith("/console/login?next=")
    assert stranger.get("/console/live/overview").status == 401
    assert stranger.get("/console/", Host="evil.example").status == 421
    url = f"{node}/console"
    user, response = login(url, BROKER_USER, "guess")
    assert response.status == 401
    user, response = login(url, BROKER_USER, BROKER_PASSWORD)
    assert response.headers["location"] == "/console/topics"
    fields = {"csrf": user.get("/topics").csrf, "name": "secrets", "configs": ""}
    assert user.post("/topics", {**fields, "partitions": "1"}).status == 303
    wait_until(lambda: "secrets" in user.get("/topics").words)
    assert user.post("/topics", {**fields, "note": "x" * (BODY_BYTES_MAX // 2)}).status == 400
    with urllib.request.urlopen(f"{node}/metrics", timeout=PATIENCE_S) as found:
        assert "secrets" not in found.read().decode()
