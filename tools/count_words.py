"""Count the words of the README and the docs, with a separate count of generated pages.

python -m tools.count_words
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_GENERATED: Final = ("<!-- Written by", "<!-- Generated")


def main() -> None:
    """Print the number of words of each section."""
    listed = subprocess.run(
        ["git", "ls-files", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    words: Counter[str] = Counter()
    for name in listed.stdout.splitlines():
        text = (ROOT / name).read_text()
        parts = Path(name).parts
        section = "/".join(parts[:2]) if len(parts) > 2 else name
        if any(mark in text[:600] for mark in _GENERATED):
            section = "generated"
        words[section] += len(text.split())
    docs = sum(n for section, n in words.items() if section.startswith("docs"))
    for section, count in sorted(words.items()):
        sys.stdout.write(f"{count:7,} {section}\n")
    sys.stdout.write(f"{docs:7,} docs without generated pages\n")


if __name__ == "__main__":
    main()
