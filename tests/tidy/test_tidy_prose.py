"""Check the length of the README and the design notes, and the spelling."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED_FOLDERS = {"tests", "site", "build", "dist", "node_modules", "__pycache__"}
README_LINES_MAX = 80
NOTE_WORDS_MAX = 800

IZE = (
    "author|custom|emphas|final|initial|maxim|minim|normal|optim|organ|priorit|real|recogn|serial"
    "|summar|synchron|util|visual"
)
OR = "behavi|col|endeav|fav|flav|hon|lab|neighb"
CANNOT = re.compile(r"\bcan\s+not\b", re.IGNORECASE)
BRITISH = re.compile(
    rf"(?:{IZE})is(?:e[ds]?|ing|ation)\b|\b(?:mis)?(?:{OR})our|\banalys(?:e|ed|ing)\b",
    re.IGNORECASE,
)


def prose_files() -> list[Path]:
    """Return the Markdown and Python files outside of SKIPPED_FOLDERS and hidden folders."""
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(".")
        ]
        found += [Path(folder, name) for name in names if name.endswith((".md", ".py"))]
    return sorted(found)


def matches(pattern: re.Pattern[str]) -> list[str]:
    """Return `path:line: words` for each match. A match may span a line break."""
    found: list[str] = []
    for path in prose_files():
        text = path.read_text()
        found += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}: {m.group()!r}"
            for m in pattern.finditer(text)
        ]
    return found


def test_readme_is_short() -> None:
    count = len((ROOT / "README.md").read_text().splitlines())
    assert count <= README_LINES_MAX, f"README.md has {count} lines"


def test_design_notes_are_short() -> None:
    words = {path.name: len(path.read_text().split()) for path in ROOT.glob("docs/design/*.md")}
    assert words
    assert not {name: count for name, count in words.items() if count > NOTE_WORDS_MAX}


def test_cannot_is_one_word() -> None:
    assert not matches(CANNOT)


def test_spelling_is_american() -> None:
    assert not matches(BRITISH)


def test_spelling_patterns_match_misspellings() -> None:
    assert CANNOT.search("it can\nnot be")
    assert not CANNOT.search("it cannot be; a can nothing")
    british = [
        "behaviour",
        "honours",
        "neighbouring",
        "optimised",
        "Serialisation",
        "initialising",
        "unrecognised",
        "analysed",
    ]
    assert [word for word in british if BRITISH.search(word)] == british
    american = [
        "behavior",
        "honor",
        "optimized",
        "advertised",
        "otherwise",
        "hours",
        "four",
        "your",
        "promise",
        "realistic",
        "serialized",
    ]
    assert [word for word in american if BRITISH.search(word)] == []
