"""Fuzz all targets, or the given ones, for a total number of minutes.

python -m tests.fuzz --minutes 5 [TARGET ...]
python -m tests.fuzz --repeat TARGET FILE
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.examine import examine
from tests.fuzz.seeds import seeds_of
from tests.fuzz.targets import TARGETS, Target

SECONDS_MIN = 3.0
SAID_LINES_MAX = 40
HANG_S = 120.0
"""A worker that exceeds its time by this much is considered hung. On a busy machine, starting one
takes half a minute.
"""


def fuzz(target: Target, seconds: float) -> int:
    """Fuzz one target in its own process and return the number of findings."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "tests.fuzz.worker", target.name, str(seconds), name]
        said = folder / "said"
        with said.open("wb") as file:
            try:
                code: object = subprocess.run(
                    command,
                    check=False,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=seconds + HANG_S,
                ).returncode
            except subprocess.TimeoutExpired:
                code = "a hang"
        found = [
            (path.read_text(), path.with_suffix(".bin").read_bytes())
            for path in sorted(folder.glob("*.txt"))
        ]
        if code:
            assert (folder / "last").exists(), f"the worker of {target.name} did not start"
            last = (folder / "last").read_bytes()
            size = int.from_bytes(last[:8], "big")
            lines = said.read_text("utf-8", "replace").splitlines()[-SAID_LINES_MAX:]
            what = "\n".join((f"the process ended with {code}; it wrote:", *lines))
            found.append((what, last[8 : 8 + size]))
        corpus = sum(1 for _ in folder.glob("corpus/*")) or len(seeds_of(target))
        runs = int((folder / "runs").read_text()) if (folder / "runs").exists() else 0
    print(
        f"{target.name:16}{runs:>10} runs {runs / seconds:>9.0f}/s"
        f" {corpus:>5} in the corpus {len(found):>3} findings",
        flush=True,
    )
    for wrong, data in found:
        target.findings.mkdir(parents=True, exist_ok=True)
        path = target.findings / f"{hashlib.sha256(data).hexdigest()[:16]}.bin"
        path.write_bytes(data)
        print(f"{wrong}\nrepeat: python -m tests.fuzz --repeat {target.name} {path}", flush=True)
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--repeat", nargs=2, metavar=("TARGET", "FILE"))
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    args = parser.parse_args()
    if args.repeat:
        wrong = examine(TARGETS[args.repeat[0]], Path(args.repeat[1]).read_bytes(), traced=True)
        print(wrong or "nothing is wrong with this input")
        return int(wrong is not None)
    names = args.targets or list(TARGETS)
    seconds = max(SECONDS_MIN, args.minutes * 60 / len(names))
    return int(sum(fuzz(TARGETS[name], seconds) for name in names) > 0)


if __name__ == "__main__":
    sys.exit(main())
