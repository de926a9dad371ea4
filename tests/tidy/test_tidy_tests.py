"""Check that a test that fails leaves no thread and no process behind that pytest waits for."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.repository import ROOT, files, listed, shown, tree


def modules() -> Iterator[Path]:
    return (
        path for path in files() if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")
    )


def is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and name in (
        getattr(node.func, "attr", ""),
        getattr(node.func, "id", ""),
    )


def test_threads_are_daemons() -> None:
    """At its end, Python waits for every other thread, without a limit."""
    found = [
        shown(path, node.lineno)
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and is_call_of(node, "Thread")
        if not any(keyword.arg == "daemon" for keyword in node.keywords)
    ]
    assert not found, listed(found)


def test_no_block_waits_for_a_process_without_a_limit() -> None:
    """`with Popen(...)` does if the block fails; `tests.support.child_process` kills it."""
    found = [
        shown(path, node.lineno)
        for path in modules()
        for block in ast.walk(tree(path))
        if isinstance(block, ast.With)
        for item in block.items
        if is_call_of(node := item.context_expr, "Popen")
    ]
    assert not found, listed(found)
