"""Run the image as Kubernetes does with the chart's security context: as its user, with a read-only
root, without capabilities, and with two writable directories. Uses runc with separate namespaces.
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

from tests.image.builder import WORK, ImageFailed, run

NAME: Final = "penstock-image-test"
READY_TIMEOUT_S: Final = 180.0
_WRITABLE: Final = ("/tmp", "/var/lib/penstock")
_POLL_INTERVAL_S: Final = 0.1
_STOP_TIMEOUT_S: Final = 180.0


class Container:
    """A running container. root: the files of the image. config: that of the image. arguments:
    those of the entry point.
    """

    def __init__(self, root: Path, config: Any, *arguments: str) -> None:
        self._bundle = WORK / "bundle"
        self._log = self._bundle / "log"
        self._user = tuple(map(int, config["User"].split(":")))
        self._process: subprocess.Popen[bytes] | None = None
        self._bundle.mkdir(parents=True, exist_ok=True)
        spec = self._spec(root, config, [*config["Entrypoint"], *arguments])
        (self._bundle / "config.json").write_text(json.dumps(spec, indent=1))

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                (*self._runc(), "run", "--bundle", str(self._bundle), NAME),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()  # runc forwards it
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                run(*self._runc(), "kill", NAME, "KILL")
                self._process.wait(_STOP_TIMEOUT_S)

    def until_logged(self, text: str) -> str:
        """Return the first log line that contains the text. Raises ImageFailed."""
        assert self._process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            ended = self._process.poll() is not None
            log = self._log.read_text()
            for line in log.splitlines():
                if text in line:
                    return line
            if ended or time.monotonic() > deadline:
                raise ImageFailed(f"the container did not print {text!r}:\n{log[-4_000:]}")
            time.sleep(_POLL_INTERVAL_S)

    def stop(self) -> int:
        """Stop the container as Kubernetes does, with SIGTERM, and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(_STOP_TIMEOUT_S)

    def said(self, *command: str) -> str:
        """Run a command in the container and return its output."""
        return run(*self._runc(), "exec", NAME, *command, timeout_s=READY_TIMEOUT_S)

    def _runc(self) -> tuple[str, ...]:
        return ("runc", "--root", str(WORK / "runc"))

    def _spec(self, root: Path, config: Any, arguments: list[str]) -> Any:
        user, group = self._user
        writable = [
            {
                "destination": path,
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "nodev", f"uid={user}", f"gid={group}", "mode=0700"],
            }
            for path in _WRITABLE
        ]
        return {
            "ociVersion": "1.0.2",
            "root": {"path": str(root), "readonly": True},
            "process": {
                "user": {"uid": user, "gid": group},
                "args": arguments,
                "env": config["Env"],
                "cwd": config["WorkingDir"],
                "noNewPrivileges": True,
                "capabilities": {},
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                *writable,
            ],
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]
            },
        }
