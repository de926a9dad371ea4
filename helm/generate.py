"""Generate the chart's values, schema, README and copies of documentation pages: python
helm/generate.py [--check]

Values come from `schema.yaml` and the definitions of settings. Users cannot set settings that the
chart computes. The packaged chart contains every page to which its files link.
"""

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.deploy.node.config.schema import role_schema

HERE: Final = Path(__file__).parent
CHART: Final = HERE / "penstock"
DRAFT: Final = "http://json-schema.org/draft-07/schema#"
COMPUTED: Final = frozenset(
    {
        "store",
        "wal.store",
        "allow.insecure",
        "health.listener",
        "node.id",
        "cluster.id",
        "listeners",
        "advertised.listeners",
        "broker.rack",
        "metadata.log.dir",
        "controller.quorum.voters",
        "controller.quorum.join.servers",
        "controller.quorum.bootstrap.servers",
        "controller.ssl.certificate.location",
        "controller.ssl.key.location",
        "controller.ssl.ca.location",
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "ssl.keystore.location",
        "ssl.truststore.location",
        "sasl.users.file",
        "sasl.inter.broker.username",
        "authorizer.class.name",
        "super.users",
        "allow.everyone.if.no.acl.found",
        "shutdown.redirect.ms",
        "shutdown.timeout.ms",
    }
)
"""Settings that the chart passes to every process as environment variables, which take precedence
over the file with the other settings.
"""

PAGES: Final = ("how-to/kubernetes.md", "how-to/encrypt-controllers.md", "how-to/alerts.md")
"""Documentation pages that the chart contains below `docs`, with their paths in the
documentation.
"""

_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_SOURCE: Final = re.compile(r"`((?:deploy|tests)/[^`\s]+)`")

_Json = dict[str, Any]


def generated() -> dict[Path, str]:
    """Return the content of each file."""
    source: _Json = yaml.safe_load((HERE / "schema.yaml").read_text())
    schema = _strict({"type": "object", "properties": source["values"]}, source["definitions"])
    # Helm passes `global` and the values of a parent chart to subcharts.
    schema["properties"]["global"] = {"type": "object"}
    whole = {"$schema": DRAFT, "title": "Values of the Penstock chart"} | schema
    return {
        CHART / "values.schema.json": json.dumps(whole, indent=2) + "\n",
        CHART / "values.yaml": "# Generated from helm/schema.yaml in the Penstock repository.\n"
        + "\n".join(_values(schema, 0))
        + "\n",
        CHART / "README.md": _readme(schema),
        **{CHART / "docs" / name: _page(name) for name in PAGES},
    }


def _strict(node: _Json, definitions: _Json) -> _Json:
    """Resolve the shorthands: replace `$ref`, expand `settings` to the settings of a role, and
    forbid additional properties in objects.
    """
    node = dict(node)
    if "$ref" in node:
        node = definitions[node.pop("$ref")] | node
    if "settings" in node:
        return role_schema(node.pop("settings"), COMPUTED) | node
    if "properties" in node:
        node["properties"] = {
            name: _strict(child, definitions) for name, child in node["properties"].items()
        }
        node["additionalProperties"] = False
    if isinstance(node.get("additionalProperties"), dict):
        node["additionalProperties"] = _strict(node["additionalProperties"], definitions)
    return node


def _is_group(node: _Json) -> bool:
    return node.get("type") == "object" and "properties" in node and "default" not in node


def _values(schema: _Json, depth: int) -> list[str]:
    lines: list[str] = []
    for name, node in schema["properties"].items():
        if name == "global":
            continue
        indent = "  " * depth
        lines.append(f"{indent}# {node['description']}")
        if _is_group(node):
            lines += [f"{indent}{name}:", *_values(node, depth + 1)]
        else:
            lines.append(f"{indent}{name}: {json.dumps(node['default'])}")
        if depth == 0:
            lines.append("")
    return lines if depth else lines[:-1]


def _readme(schema: _Json) -> str:
    rows = [
        f"| `{path}` | {kind} | {default} | {text} |"
        for path, kind, default, text in _rows(schema, "")
    ]
    listener = schema["properties"]["externalListeners"]["additionalProperties"]
    external = [
        f"| `{name}` | {_kind(node)} | {_cell(node['description'])} |"
        for name, node in listener["properties"].items()
    ]
    return _README.format(values="\n".join(rows), external="\n".join(external))


def _page(name: str) -> str:
    """Return a documentation page for readers who have only the chart: links to other pages become
    their titles, and paths are those of the packaged chart.
    """
    chart: _Json = yaml.safe_load((CHART / "Chart.yaml").read_text())
    text = (HERE.parent / "docs" / name).read_text()

    def link(found: re.Match[str]) -> str:
        words, target, _ = found.groups()
        page = posixpath.normpath(posixpath.join(posixpath.dirname(name), target or ""))
        is_kept = not target or ":" in target or page in PAGES
        return found[0] if is_kept else f"*{words}*"

    text = _LINK.sub(link, text)
    text = text.replace("helm/penstock/", "").replace(
        "helm/penstock", f"{chart['name']}-{chart['version']}.tgz"
    )
    text = _SOURCE.sub(r"`\1` in the Penstock repository", text)
    title, rest = text.split("\n", 1)
    return f"{title}\n\n{_NOTE}\n{rest}"


def _rows(schema: _Json, path: str) -> list[tuple[str, str, str, str]]:
    found: list[tuple[str, str, str, str]] = []
    for name, node in schema["properties"].items():
        if name == "global":
            continue
        if _is_group(node):
            found += [
                (f"**{path}{name}**", "", "", _cell(node["description"])),
                *_rows(node, f"{path}{name}."),
            ]
        else:
            found.append(
                (
                    path + name,
                    _kind(node),
                    f"`{json.dumps(node['default'])}`",
                    _cell(node["description"]),
                )
            )
    return found


def _kind(node: _Json) -> str:
    if "enum" in node:
        return ", ".join(map(str, node["enum"]))
    kind = node["type"]
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_NOTE: Final = (
    "This page of Penstock's documentation is in the chart;"
    " names in italics are other pages of the documentation."
)

_README: Final = """# Penstock on Kubernetes

Kafka-compatible streaming on object storage: a small quorum of controllers, and brokers without
disks that store all data in a bucket.
[Run on Kubernetes](docs/how-to/kubernetes.md) describes installation, security,
upgrades and scaling, and [Respond to alerts](docs/how-to/alerts.md) the response to each alert.

The chart rejects unknown values.
This file, `values.yaml` and `values.schema.json` are generated:
helm/schema.yaml in the Penstock repository contains their text.

## Values

| value | type | default | meaning |
|---|---|---|---|
{values}

`values.schema.json` lists the settings under `config.broker` and `config.controller` with their
limits, except those that the chart computes.
`penstock config docs` describes them.

## External listeners

`externalListeners` maps the name of each listener to an object:

| value | type | meaning |
|---|---|---|
{external}
"""


def main(arguments: list[str]) -> int:
    """Write the files; with --check, report outdated ones."""
    files = generated()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
        sys.stderr.write(
            f"{'stale' if '--check' in arguments else 'written'}: {path.relative_to(HERE)}\n"
        )
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
