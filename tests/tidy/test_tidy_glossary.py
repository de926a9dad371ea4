"""Check that the glossary has each term once, and the last word of every public class."""

import ast
import re
from collections import Counter

from tests.tidy.repository import ROOT, listed, shown, sources, tree

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
NAMED_BY_WHAT_HAPPENED = ("controller/metadata/records.py", "messages.py", "broker/wire/gen/")
"""Modules with records and messages of protocols, whose names say what happened."""
STATES = frozenset(
    [
        "aborted",
        "ahead",
        "at",
        "begin",
        "behind",
        "decoded",
        "done",
        "earliest",
        "effective",
        "end",
        "ended",
        "expected",
        "fetched",
        "found",
        "given",
        "latest",
        "listed",
        "more",
        "promised",
        "pushed",
        "reached",
        "rebuilt",
        "recovered",
        "started",
        "stored",
        "viewed",
        "way",
        "within",
        "written",
    ]
)
"""Last words that are no nouns but say the state of the value."""
EXCEPTIONS = frozenset({"BaseException", "Exception", "Warning", "UserWarning"})


def terms() -> list[str]:
    rows = re.findall(r"^\| (\*\*.+?\*\*) \|", GLOSSARY.read_text(), flags=re.MULTILINE)
    return [term for row in rows for term in re.findall(r"\*\*(.+?)\*\*", row)]


def test_each_term_of_the_glossary_is_there_once() -> None:
    repeated = [term for term, count in Counter(terms()).items() if count > 1]
    assert not repeated, listed(repeated)


def test_the_last_word_of_each_public_class_is_in_the_glossary() -> None:
    known = {word.lower() for term in terms() for word in re.split(r"[ -]", term)} | STATES
    bases: dict[str, list[str]] = {}
    classes: list[tuple[str, str]] = []
    for path in sources():
        if path.relative_to(ROOT).parts[0] in {"tests", "benchmarks", "helm", "docs"}:
            continue
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                if not node.name.startswith("_"):
                    classes.append((shown(path, node.lineno), node.name))
    offenders = [
        f"{place}: {name} ends in {last_word(name)!r}, which {shown(GLOSSARY)} does not have"
        for place, name in classes
        if not any(part in place for part in NAMED_BY_WHAT_HAPPENED)
        and not is_exception(name, bases)
        and not {last_word(name), singular(last_word(name))} & known
    ]
    assert not offenders, listed(offenders)


def last_word(name: str) -> str:
    return re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z]+\d*|[A-Z]+", name)[-1].lower()


def singular(word: str) -> str:
    for plural, ending in (("ies", "y"), ("ches", "ch"), ("s", "")):
        if word.endswith(plural):
            return word.removesuffix(plural) + ending
    return word


def is_exception(name: str, bases: dict[str, list[str]]) -> bool:
    if name in EXCEPTIONS or (name not in bases and name.endswith(("Error", "Exception", "Exit"))):
        return True
    return any(base != name and is_exception(base, bases) for base in bases.get(name, []))
