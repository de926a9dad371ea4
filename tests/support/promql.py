"""Find metrics and labels in the product's dashboards and rules. This is not a PromQL parser: it
supports only the queries that we write.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "penstock"
TARGET_LABELS = frozenset({"namespace", "pod", "app_kubernetes_io_component"})
"""Labels that Prometheus adds to each target; see templates/monitoring.yaml and
deploy/image/compose/prometheus.yml.
"""
_SELECTOR = re.compile(r"\b((?:penstock|process)_[a-z0-9_]+|up)\b(?:\{([^}]*)\})?")
_LABEL = re.compile(r"([a-z_]+)\s*[=!]~?\"")
_BY = re.compile(r"\bby \(([^)]*)\)")


@dataclass(frozen=True)
class Query:
    """An expression. where: its location, for messages."""

    where: str
    text: str

    def selectors(self) -> Iterator[tuple[str, set[str]]]:
        """Yield (metric, matched labels)."""
        for found in _SELECTOR.finditer(self.text):
            yield found[1], set(_LABEL.findall(found[2] or ""))

    def grouped(self) -> set[str]:
        """Return the labels by which the expression aggregates."""
        return {label.strip() for found in _BY.finditer(self.text) for label in found[1].split(",")}


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for path in (CHART / "rules").glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


def queries() -> list[Query]:
    """Return all queries of dashboards and rules."""
    found = [Query(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
    for path in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            found += [
                Query(f"{path.name}: {panel['title']}", target["expr"])
                for target in panel["targets"]
            ]
    return found
