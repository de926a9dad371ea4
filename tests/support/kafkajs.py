"""Run checks with kafkajs, a client for Node."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.npm import NODE, package

VERSION: Final = "2.2.4"
_PROGRAM: Final = Path(__file__).parents[1] / "interop" / "clients" / "kafkajs.js"
_CHECKS_S: Final = 600


def install_kafkajs() -> Path:
    """Download kafkajs unless it is present. If npm fails, skip the test, or fail it in CI."""
    return package("kafkajs", VERSION)


def run_kafkajs(bootstrap: str, *checks: str, **settings: Any) -> Mapping[str, Any]:
    """Run `kafkajs.js`; return the result of each check. settings: additional kafkajs
    configuration.
    """
    config = json.dumps({"brokers": [bootstrap], **settings})
    done = subprocess.run(
        [NODE, "--no-warnings", _PROGRAM, install_kafkajs(), config, *checks],
        env={**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=_CHECKS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["check"]: line["found"] for line in lines}
