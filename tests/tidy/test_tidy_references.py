"""Check that referenced paths, modules, links and anchors exist in the repository.

Paths that begin with a folder of the root are checked everywhere, other file names (`codec.py`) in
Markdown, docstrings and comments. Names with wildcards or placeholders are not references.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from penstock.controller.metadata.topic_configs import TOPIC_CONFIGS
from penstock.deploy.node.config.definition import ROLES, settings_of
from tests.tidy.markdown import anchors, links, prose
from tests.tidy.repository import ROOT, files, listed, packages, shown, text, without_link

NOT_OURS = {
    "changelog.md": "CHANGELOG.md, which the docs site adds",
    "CONFIGURATION.md": "of librdkafka",
    "python/pyspark/daemon.py": "of Apache Spark",
    "kafka-*.sh": "a tool of Apache Kafka",
    "connect-*.sh": "a tool of Apache Kafka",
    "open-api/rest-catalog-open-api.yaml": "of Apache Iceberg",
    "benchmarks/results.jsonl": "what `make bench` writes",
    "penstock.toml": "a configuration file that an operator writes",
    "penstock/profiles.toml": "the profiles of a user",
    "broker.toml": "a configuration file that an operator writes",
    "controller.toml": "a configuration file that an operator writes",
    "my-*.yaml": "a values file that an operator writes",
    "test_*.py": "a test that the reader of docs/reference/pytest.md writes",
    "conftest.py": "a file that users of the pytest plugin may have",
    "orders.py": "a program that the reader of docs/tutorials/first-cluster.md writes",
    "kill_brokers.py": "a program that the reader of docs/tutorials/first-cluster.md writes",
    "scan_flights.py": "a program that the reader of docs/tutorials/first-spark-query.md writes",
    "penstock/listener": "a label of the Services in the Helm chart",
    "penstock/operator": "a label of pods, in the network policy of the Helm chart",
}
"""File names that are not from this repository, with their origin."""

NO_MODULES = {
    "penstock.fork.deleted.records": "an option of CreateTopics",
    "penstock.fork.offsets": "an option of CreateTopics",
    "penstock.fork.timestamp.ms": "an option of CreateTopics",
    "penstock.mirror.finished": "a topic config",
    "penstock.mirror.source": "a topic config",
    "penstock.node": "an attribute of spans",
    "penstock.offsets": "a property of Iceberg tables",
    "penstock.streams.svc.cluster.local": "a host name in Kubernetes",
    "penstock.undelete": "an option of CreateTopics",
}
"""Dotted names that start like a Penstock package but are something else."""

TEXTS = {".py", ".md", ".sh", ".yaml", ".yml", ".toml", ".tpl", ".dockerignore", ""}
FILE = re.compile(
    r"(?<![\w./:@$%{}*<>-])(?:\.{1,2}/)*((?:[\w.-]+/)*[\w.-]+\.(?:py|md|sh|ya?ml|toml))(?![\w/*<{(-]|\.\w)"
)
ANCHOR = re.compile(r"(?<![\w/])((?:[\w-]+/)*[\w-]+\.md)#([\w-]+)")
CODE_SPAN = re.compile(r"`([^`\n]+)`|(python -m [\w.]+)")


def lines_with(pattern: str) -> Iterator[tuple[Path, int, str]]:
    """Yield all lines of text files that match the pattern. Patterns that start with a literal are
    fast.
    """
    searched = re.compile(pattern)
    for path in files():
        if path.suffix in TEXTS and searched.search(text(path)):
            yield from (
                (path, number, line)
                for number, line in enumerate(text(path).splitlines(), 1)
                if searched.search(line)
            )


@cache
def below_the_root() -> frozenset[str]:
    """Return all files and folders, relative to the root."""
    paths = [path.relative_to(ROOT) for path in files()]
    return frozenset(str(path) for path in paths) | {
        str(folder) for path in paths for folder in path.parents
    }


@cache
def short_names() -> frozenset[str]:
    """Return the path of every file, also without leading folders."""
    parts = [path.relative_to(ROOT).parts for path in files()]
    return frozenset("/".join(path[begin:]) for path in parts for begin in range(len(path)))


@cache
def folders() -> tuple[str, ...]:
    """Return the top-level folders."""
    return tuple(
        sorted({path.relative_to(ROOT).parts[0] for path in files() if path.parent != ROOT})
    )


@cache
def lines_of_prose(path: Path) -> frozenset[int]:
    """Return the numbers of prose lines: docstrings and comments of Python files, all lines of
    other files.
    """
    if path.suffix != ".py":
        return frozenset(range(1, len(text(path).splitlines()) + 1))
    found = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text(path)).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(ast.parse(text(path))):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(found)


def test_referenced_files_exist() -> None:
    below = re.compile(
        rf"(?<![\w./:@$%{{}}*<>-])((?:{'|'.join(folders())})/[\w./-]*\w)(?![\w/*<{{]|\.?[*<{{])"
    )
    offenders = []
    for path, number, line in lines_with(r"/|\.(?:py|md|sh|ya?ml|toml)\b"):
        named = {
            name
            for name in FILE.findall(line)
            if name not in short_names() and number in lines_of_prose(path)
        }
        named |= {
            name for name in below.findall(line) if without_link(name) not in below_the_root()
        }
        offenders += [
            f"{shown(path, number)}: {name}"
            for name in named
            if not any(fnmatch(name, pattern) for pattern in NOT_OURS)
        ]
    assert not offenders, listed(offenders)


def test_referenced_modules_exist() -> None:
    """Check `package.module` and `package.module.name` at the start of code spans and commands."""
    first = "|".join((*packages(), "tests", "benchmarks"))
    module = re.compile(rf"(?:^|-m |from |import )((?:{first})(?:\.[A-Za-z_]\w*)+)(?![\w(/.=-])")
    settings = {name for role in ROLES for name in settings_of(role)} | set(TOPIC_CONFIGS)
    offenders = [
        f"{shown(path, number)}: {name}"
        for path, number, line in lines_with(r"`[^`.]*\.|-m ")
        if path.suffix in {".py", ".md"}
        for span in CODE_SPAN.findall(line)
        for name in module.findall(span[0] or span[1])
        if name not in settings and name not in NO_MODULES and not is_defined(name)
    ]
    assert not offenders, listed(offenders)


@cache
def is_defined(name: str) -> bool:
    """Return whether the name is a module, or a module followed by names that it contains. Prose
    may omit `penstock.`.
    """
    parts = without_link(name).split(".")
    for count in range(len(parts), 0, -1):
        place = "/".join(parts[:count])
        if count == len(parts) and place in below_the_root():
            return True
        for file in (f"{place}.py", f"{place}/__init__.py"):
            if file in below_the_root():
                return all(re.search(rf"\b{rest}\b", text(ROOT / file)) for rest in parts[count:])
    return False


def test_markdown_link_targets_exist() -> None:
    offenders = []
    for path in files():
        if path.suffix == ".md":
            for number, target in links(text(path)):
                name, _, anchor = target.partition("#")
                file = (path.parent / name).resolve() if name else path
                if not file.exists():
                    offenders.append(f"{shown(path, number)}: no file {target}")
                elif anchor and file.suffix == ".md" and anchor not in anchors(text(file)):
                    offenders.append(f"{shown(path, number)}: no heading for {target}")
    assert not offenders, listed(offenders)


def test_anchors_referenced_outside_of_markdown_exist() -> None:
    """Check anchors such as those in the documentation links of alerts."""
    offenders = [
        f"{shown(path, number)}: no heading for {name}#{anchor}"
        for path, number, line in lines_with(r"\.md#")
        if path.suffix != ".md"
        for name, anchor in ANCHOR.findall(line)
        if name in below_the_root() and anchor not in anchors(text(ROOT / name))
    ]
    assert not offenders, listed(offenders)


def test_patterns_find_references_and_nothing_else() -> None:
    """Test the patterns with references, and with text that looks similar."""
    assert FILE.findall("see guides/x.md, `wal/core.py` and ../y.sh.") == [
        "guides/x.md",
        "wal/core.py",
        "y.sh",
    ]
    assert FILE.findall("https://example.com/a/b.md docs/*.md <name>.py {name}.yaml a.python") == []
    assert list(prose("a\n```sh\n# b\n```\nc")) == [(1, "a"), (5, "c")]
    assert anchors("# A B\n```\n# no\n```\n## Broker: `x` & y") == {
        "a-b",
        "broker-x--y",
        "broker-x-y",
    }
    assert list(links("[a](b.md#c) `[d](e)` [f](https://g)\n\n[h]: i.md")) == [
        (1, "b.md#c"),
        (3, "i.md"),
    ]
