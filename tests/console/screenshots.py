"""Take the screenshots of docs/how-to/console.md: `make screenshots`.

Starts a cluster with traffic, moves a partition, and takes pages in light and dark mode, then some
during faults.
"""

import base64
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from selenium.webdriver import Chrome

from penstock.base.scram import ScramMechanism
from penstock.deploy.admin.reassign.admin import reassign
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.clients.users import create_user
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.local.handle import LocalCluster
from tests.console.conftest import PASSWORD, admin_of
from tests.console.test_console_pages import text_of, wait_for_text
from tests.support.browser import DESK, PHONE, browser, fill, resize
from tests.support.console import ConsoleProcess, produce, without_packages
from tests.support.waiting import wait_until

DIRECTORY: Final = Path(__file__).parents[2] / "docs" / "assets" / "console"
BYTES_MAX: Final = 200_000
PAUSE_S: Final = 3.0
START_S: Final = 5.0
"""Time until the load of the start has left the charts. Otherwise it would determine
their scale.
"""
TRAFFIC_S: Final = 45.0
PICTURES: Final = (
    ("overview", "/", False),
    ("overview-dark", "/", True),
    ("move", "/topics/orders/0/move", False),
    ("messages-dark", "/topics/orders/messages", True),
    ("topic", "/topics/orders", False),
    ("group", "/groups/one?id=billing", False),
)
FAULT: Final = (1280, 460)
DELETED: Final = 1_154
PHONE_PAGE: Final = "/topics"
SIZES: Final = {
    "messages-dark": (1280, 640),
    "move": (1280, 560),
    "group": (1280, 720),
    "topic": (1280, 760),
}


def main() -> int:
    with (
        LocalCluster(("--brokers", "3", "--topics", "orders:6,clicks:3,payments:1")) as cluster,
        ConsoleProcess(cluster.state_path) as console,
        browser() as chrome,
    ):
        ended = threading.Event()
        traffic = threading.Thread(
            target=_send, args=(cluster.bootstrap, Random(7), ended), daemon=True
        )
        traffic.start()
        time.sleep(START_S)
        chrome.get(console.url)
        time.sleep(TRAFFIC_S * 2 / 3)
        with WireClient(cluster.bootstrap) as client:
            reassign(client, {Key("orders", 0): (2,)})
        time.sleep(TRAFFIC_S / 3)
        DIRECTORY.mkdir(exist_ok=True)
        sizes = [_picture(chrome, console.url, *picture) for picture in PICTURES]
        resize(chrome, PHONE)
        chrome.get(console.url + PHONE_PAGE)
        sizes.append(_photograph(chrome, "phone"))
        sizes += _faults(chrome, cluster, console)
        ended.set()
        traffic.join()
        sizes += _missing(chrome, cluster)
        sizes.append(_gone(chrome, cluster, console))
    secure = ("--brokers", "1", "--secure", "--topics", "orders:1")
    with LocalCluster(secure) as cluster, browser() as chrome:
        sizes.append(_refused(chrome, cluster))
    return int(max(sizes) > BYTES_MAX)


def _faults(chrome: Chrome, cluster: LocalCluster, console: ConsoleProcess) -> list[int]:
    """Stop the store, then a broker, and delete records."""
    resize(chrome, FAULT)
    sizes: list[int] = []
    store = cluster.state().of_role("store")
    chrome.get(console.url)
    cluster.kill(store, signal.SIGSTOP)
    wait_for_text(chrome, "The object store does not respond")
    sizes.append(_photograph(chrome, "fault-store"))
    cluster.kill(store, signal.SIGCONT)
    wait_for_text(chrome, "live")
    hung = [process for process in cluster.brokers() if process.node_id == 1]
    cluster.kill(hung, signal.SIGSTOP)
    wait_for_text(chrome, "Broker 1 ")
    sizes.append(_photograph(chrome, "fault-hung"))
    wait_for_text(chrome, "Broker 1 is fenced")
    chrome.get(f"{console.url}/nodes")
    sizes.append(_photograph(chrome, "fault-fenced"))
    cluster.kill(hung, signal.SIGCONT)
    sizes.append(_deleted(chrome, cluster, console))
    return sizes


def _deleted(chrome: Chrome, cluster: LocalCluster, console: ConsoleProcess) -> int:
    """Write records, and delete all of them once the console shows their count."""
    produce(cluster.bootstrap, "payments", list(range(DELETED)))
    chrome.get(f"{console.url}/topics")
    wait_for_text(chrome, f"{DELETED:,}")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.delete_records([TopicPartition("payments", 0, -1)]).values():
        future.result(30)
    wait_until(lambda: f"{DELETED:,}" not in text_of(chrome))
    wait_for_text(chrome, "live")
    return _photograph(chrome, "fault-deleted")


def _missing(chrome: Chrome, cluster: LocalCluster) -> list[int]:
    """Show a topic page in a console without the extras that read records."""
    with (
        TemporaryDirectory() as directory,
        without_packages(Path(directory)),
        ConsoleProcess(cluster.state_path) as console,
    ):
        chrome.get(f"{console.url}/topics/orders")
        return [_photograph(chrome, "fault-extra")]


def _gone(chrome: Chrome, cluster: LocalCluster, console: ConsoleProcess) -> int:
    chrome.get(console.url)
    time.sleep(PAUSE_S)
    os.kill(cluster.pid, signal.SIGSTOP)  # otherwise it would restart the nodes
    try:
        state = cluster.state()
        cluster.kill([*state.of_role("broker"), *state.of_role("controller")])
        wait_for_text(chrome, "The cluster does not respond")
        time.sleep(PAUSE_S)
        return _photograph(chrome, "fault-gone")
    finally:
        os.kill(cluster.pid, signal.SIGCONT)


def _refused(chrome: Chrome, cluster: LocalCluster) -> int:
    with WireClient(cluster.bootstrap, admin_of(cluster)) as client:
        create_user(client, "bob", PASSWORD, ScramMechanism.SCRAM_SHA_256, 4_096)
    resize(chrome, FAULT)
    chrome.get(f"{cluster.state().console}/topics")
    fill(chrome, user="bob", password=PASSWORD)
    wait_for_text(chrome, "bob")
    chrome.get(cluster.state().console)
    return _photograph(chrome, "fault-rights")


def _picture(chrome: Chrome, url: str, name: str, path: str, is_dark: bool) -> int:
    resize(chrome, SIZES.get(name, DESK), dark=is_dark)
    chrome.get(url + path)
    time.sleep(PAUSE_S)
    return _photograph(chrome, name)


def _photograph(chrome: Chrome, name: str) -> int:
    response = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    data = base64.b64decode(response["data"])
    (DIRECTORY / f"{name}.png").write_bytes(data)
    sys.stdout.write(f"{name}.png: {len(data):,} bytes\n")
    return len(data)


def _send(bootstrap: str, random: Random, ended: threading.Event) -> None:
    """Produce orders and clicks until the screenshots are taken, and consume some of them."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 100})
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    number = 0
    while not ended.is_set():
        for _ in range(random.randrange(10, 60)):
            number += 1
            order = {
                "order_id": 480_000 + number,
                "customer": f"c-{random.randrange(900)}",
                "amount": random.randrange(500, 20_000) / 100,
                "items": [{"sku": f"a-{random.randrange(90)}", "count": random.randrange(1, 4)}],
            }
            key = f"c-{random.randrange(50)}"
            producer.produce("orders", json.dumps(order), key=key, headers={"trace": "a1b2c3"})
            producer.produce("clicks", f"GET /cart/{number}", key=f"u-{random.randrange(500)}")
        producer.poll(0)
        consumer.consume(60, 0.05)
    producer.flush(30)
    consumer.close()


if __name__ == "__main__":
    sys.exit(main())
