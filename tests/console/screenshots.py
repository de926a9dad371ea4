"""Take the pictures of docs/how-to/console.md: `make screenshots`.

Starts a cluster with traffic, moves a partition, and photographs pages in light and dark.
"""

import base64
import json
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import Consumer, Producer
from selenium.webdriver import Chrome

from penstock.deploy.admin.reassign.admin import reassign
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.local.handle import LocalCluster
from tests.support.browser import DESK, browser, resize
from tests.support.console import ConsoleProcess

DIRECTORY: Final = Path(__file__).parents[2] / "docs" / "assets" / "console"
BYTES_MAX: Final = 200_000
START_S: Final = 5.0
"""What nodes do at their start would be the highest point of the charts."""
TRAFFIC_S: Final = 45.0
PICTURES: Final = (
    ("overview", "/", False),
    ("overview-dark", "/", True),
    ("move", "/topics/orders/0/move", False),
    ("messages-dark", "/topics/orders/messages", True),
    ("topic", "/topics/orders", False),
    ("group", "/groups/one?id=billing", False),
)
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
        traffic = threading.Thread(target=_send, args=(cluster.bootstrap, Random(7), ended))
        traffic.start()
        time.sleep(START_S)
        chrome.get(console.url)
        time.sleep(TRAFFIC_S * 2 / 3)
        with WireClient(cluster.bootstrap) as client:
            reassign(client, {Key("orders", 0): (2,)})
        time.sleep(TRAFFIC_S / 3)
        DIRECTORY.mkdir(exist_ok=True)
        sizes = [_picture(chrome, console.url, *picture) for picture in PICTURES]
        ended.set()
        traffic.join()
    return int(max(sizes) > BYTES_MAX)


def _picture(chrome: Chrome, url: str, name: str, path: str, is_dark: bool) -> int:
    resize(chrome, SIZES.get(name, DESK), dark=is_dark)
    chrome.get(url + path)
    time.sleep(3)
    answer = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    data = base64.b64decode(answer["data"])
    (DIRECTORY / f"{name}.png").write_bytes(data)
    sys.stdout.write(f"{name}.png: {len(data):,} bytes\n")
    return len(data)


def _send(bootstrap: str, random: Random, ended: threading.Event) -> None:
    """Send orders and clicks until the pictures are taken, and read some of them."""
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
