"""Parse Markdown for the tidy tests: prose, code spans, code blocks, headings and links."""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

_FENCE = re.compile(r"^\s*(?:>\s*)?(```+|~~~+)\s*(\w*)")
_SPAN = re.compile(r"(`+)(.+?)\1(?!`)")
_LINK = re.compile(
    r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)|^\s*\[[^\]]+\]:\s+(\S+)|(?:href|src)=\"([^\"]+)\""
)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|/")


class Code(NamedTuple):
    """A code span, or one command or line of a code block. `language` is empty for a span."""

    line: int
    language: str
    text: str
    is_block: bool


@cache
def _split(source: str) -> tuple[tuple[tuple[int, str], ...], tuple[tuple[int, str, str], ...]]:
    """Return the prose lines, and the lines of code blocks with their language."""
    outside: list[tuple[int, str]] = []
    inside: list[tuple[int, str, str]] = []
    fence = language = ""
    for number, line in enumerate(source.splitlines(), 1):
        match = _FENCE.match(line)
        if match and not fence:
            fence, language = match.group(1), match.group(2)
        elif match and match.group(1).startswith(fence) and not match.group(2):
            fence = ""
        elif fence:
            inside.append((number, language, line))
        else:
            outside.append((number, line))
    return tuple(outside), tuple(inside)


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside of code blocks, with their numbers."""
    yield from _split(source)[0]


def code(source: str) -> Iterator[Code]:
    """Yield code spans and the lines of code blocks. Join lines that end in a backslash."""
    for number, line in prose(source):
        for match in _SPAN.finditer(line):
            yield Code(number, "", match.group(2).strip(), False)
    begin, joined = 0, ""
    for number, language, line in _split(source)[1]:
        begin = begin or number
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
        else:
            yield Code(begin, language, joined.strip(), True)
            begin, joined = 0, ""


def links(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and target of each link to a file or heading of the repository."""
    for number, line in prose(source):
        for match in _LINK.finditer(
            _SPAN.sub("", line) if "](" in line or "]:" in line or '="' in line else ""
        ):
            target = match.group(1) or match.group(2) or match.group(3)
            if not _ELSEWHERE.match(target):
                yield number, target


@cache
def anchors(source: str) -> frozenset[str]:
    """Return the explicit anchors, and the heading anchors that GitHub and MkDocs generate."""
    found: set[str] = set()
    for _, line in prose(source):
        found |= set(re.findall(r"(?:id=\"|name=\"|\{ ?#)([\w-]+)", line))
        if re.match(r"#{1,6} ", line):
            title = re.sub(r"\]\([^)]*\)|\{[^}]*\}", "", line.lstrip("# ")).strip().lower()
            words = re.sub(r"[^\w\s-]", "", title)
            slugs = {
                words.replace(" ", "-"),
                re.sub(r"[-\s]+", "-", words.encode("ascii", "ignore").decode()).strip("-"),
            }
            found |= {
                f"{slug}{end}"
                for slug in slugs
                for end in ("", *(["-1", "_1"] if slug in found else []))
            }
    return frozenset(found)
