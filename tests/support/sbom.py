"""Read the image's bill of materials: CycloneDX in JSON."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from jsonschema_rs import Registry, validator_for
from packaging.utils import canonicalize_name

IN_THE_IMAGE: Final = Path("opt/penstock/sbom.cdx.json")
_SCHEMA: Final = "bom-1.6"
_ALSO: Final = ("spdx", "jsf-0.82")
"""The schemas that the CycloneDX schema refers to."""


class Bill:
    """A bill of materials. Raises ValueError if the text does not match the schema of CycloneDX
    1.6.
    """

    def __init__(self, text: str) -> None:
        self._content: Any = json.loads(text)
        if error := _refusal(self._content):
            raise ValueError(f"this is not CycloneDX 1.6: {error}")
        self.product: Any = self._content["metadata"]["component"]
        self.components: dict[str, Any] = {
            canonicalize_name(it["name"]): it for it in self._content["components"]
        }

    @property
    def versions(self) -> dict[str, str]:
        """Return the version of each package, including Penstock."""
        return {
            canonicalize_name(it["name"]): it["version"]
            for it in (self.product, *self.components.values())
        }

    def needs(self, name: str) -> set[str]:
        """Return the names of the packages that a package depends on."""
        names = {it["bom-ref"]: canonicalize_name(it["name"]) for it in self.components.values()}
        names[self.product["bom-ref"]] = canonicalize_name(self.product["name"])
        of = {names[it["ref"]]: it.get("dependsOn", []) for it in self._content["dependencies"]}
        return {names[reference] for reference in of[name]}


def _refusal(content: Any) -> str:
    """Return the reason why the schemas of the CycloneDX library reject a document; empty if they
    accept it.

    The library's own validator uses the same schemas, but takes 17 s of CPU for this environment.
    """
    schema = _schema(_SCHEMA)
    begin = schema["$id"].removesuffix(f"{_SCHEMA}.schema.json")
    also = [(f"{begin}{name}.SNAPSHOT.schema.json", _schema(name)) for name in _ALSO]
    errors = validator_for(schema, registry=Registry(also)).iter_errors(content)
    return next((f"{error.instance_path}: {error.message}" for error in errors), "")


def _schema(name: str) -> Any:
    file = files("cyclonedx.schema") / "_res" / f"{name}.SNAPSHOT.schema.json"
    return json.loads(file.read_text())


def installed(packages: Path) -> dict[str, str]:
    """Return the name and version of each distribution below a site-packages directory."""
    found: dict[str, str] = {}
    for directory in packages.glob("*.dist-info"):
        name, version = directory.name.removesuffix(".dist-info").rsplit("-", 1)
        found[canonicalize_name(name)] = version
    return found
