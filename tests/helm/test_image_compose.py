"""Check compose.yaml: nodes accept their commands and variables, the files exist, and the images
are pinned.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from penstock.base.listeners import parse_listeners
from penstock.broker.config import BrokerConfig
from penstock.controller.config import ControllerConfig
from penstock.deploy.node.config.load import load

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "image" / "compose.yaml"


def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def nodes(role: str) -> dict[str, Any]:
    return {name: it for name, it in services().items() if it.get("command") == [role]}


def test_compose_has_three_brokers_and_three_controllers() -> None:
    assert len(nodes("broker")) == len(nodes("controller")) == 3
    assert {"s3", "prometheus", "grafana", "kafbat-ui"} <= set(services())


def test_nodes_accept_their_variables_and_addresses_match() -> None:
    controllers = {
        name: load("controller", [], it["environment"], hostname=name).part(ControllerConfig)
        for name, it in nodes("controller").items()
    }
    reported = {
        parse_listeners("advertised_listeners", it.advertised_listeners)[0].address
        for it in controllers.values()
    }
    assert reported == {f"{name}:9093" for name in controllers}
    for config in controllers.values():
        assert set(config.voters.values()) == reported
        assert config.voters[config.controller_id] in config.advertised_listeners[0]
    for name, it in nodes("broker").items():
        broker = load("broker", [], it["environment"], hostname=name).part(BrokerConfig)
        assert set(broker.controllers) == reported
        inside, outside = broker.advertised("", {"PLAINTEXT": 1, "HOST": 1})
        assert inside.address == f"{name}:9092"
        assert it["ports"] == [f"127.0.0.1:{outside.port}:{outside.port}"]
        assert [listener.port for listener in broker.bound] == [9092, outside.port]
        assert int(it["stop_grace_period"].rstrip("s")) * 1_000 > broker.shutdown_timeout_ms


def test_images_are_pinned_and_files_exist() -> None:
    for name, it in services().items():
        assert re.search(r":v?\d+\.\d+(\.\d+)?\Z", it["image"]), name
        for volume in it.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), source
    build = services()["broker-0"]["build"]
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).is_file()


def test_nodes_are_confined() -> None:
    for it in [*nodes("broker").values(), *nodes("controller").values()]:
        assert it["read_only"]
        assert it["cap_drop"] == ["ALL"]


def test_prometheus_scrapes_every_node() -> None:
    config = yaml.safe_load((COMPOSE.parent / "compose" / "prometheus.yml").read_text())
    targets = {
        target
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets == {f"{name}:9404" for name in [*nodes("broker"), *nodes("controller")]}
