"""Check that a failed test leaves no thread or process that pytest waits for."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.repository import ROOT, files, listed, shown, text, tree
from tools.lanes import BUDGET


def nodes(word: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yield the syntax nodes of test modules that contain a word. Parsing all modules
    takes 10 s.
    """
    for path in files():
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests") and word in text(path):
            yield from ((path, node) for node in ast.walk(tree(path)))


def is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and name in (
        getattr(node.func, "attr", ""),
        getattr(node.func, "id", ""),
    )


def test_threads_are_daemons() -> None:
    """Python waits without a limit for all other threads when it exits."""
    found = [
        shown(path, node.lineno)
        for path, node in nodes("Thread(")
        if isinstance(node, ast.Call) and is_call_of(node, "Thread")
        if not any(keyword.arg == "daemon" for keyword in node.keywords)
    ]
    assert not found, listed(found)


def test_no_with_block_waits_for_a_process_without_a_limit() -> None:
    """`with Popen(...)` waits without a limit if the block fails; `tests.support.child_process`
    kills the process instead.
    """
    found = [
        shown(path, node.lineno)
        for path, block in nodes("Popen(")
        if isinstance(block, ast.With)
        for item in block.items
        if is_call_of(node := item.context_expr, "Popen")
    ]
    assert not found, listed(found)


def test_every_target_of_make_test_has_a_cpu_budget() -> None:
    makefile = text(ROOT / "Makefile")
    measured = re.findall(
        r"^([a-z-]+):(?:.*\n)(?:\t.*\n)*?\t.*\$\(MEASURED\)", makefile, re.MULTILINE
    )
    assert sorted(measured) == sorted(tomllib.loads(text(BUDGET)))
