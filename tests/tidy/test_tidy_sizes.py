"""Check rules that ruff does not have: file and function sizes, module names, no TODO comments, a
marker in generated code. ruff checks complexity and module docstrings (D100, D104).
"""

import ast

from tests.tidy.repository import ROOT, files, listed, shown, sources, text, tree

FILE_LINES_MAX = 900
FUNCTION_LINES_MAX = 80
LONG_FUNCTIONS: dict[str, str] = {}
"""Longer functions that are best kept in one piece, as path:name, with the reason."""
MODULE_DOCSTRING_LINES_MAX = 5
SHORT_DOCSTRINGS = ("base", "broker", "controller", "objectstore", "protocol", "stream")
"""Folders whose module docstrings are short. An `__init__` docstring may describe the design of its
package.
"""
LONG_DOCSTRINGS = {"broker/network/peers.py"}
VAGUE_NAMES = {"utils", "util", "helpers", "common", "misc"}


def test_files_are_not_too_long() -> None:
    lengths = [(path, len(text(path).splitlines())) for path in sources()]
    long = [
        f"{shown(path)}: {length} lines, more than {FILE_LINES_MAX}"
        for path, length in lengths
        if length > FILE_LINES_MAX
    ]
    assert not long, listed(long)


def test_functions_fit_on_a_screen() -> None:
    long = {
        f"{shown(path)}:{node.name}": (
            f"{shown(path, node.lineno)}: {node.name} has {lines} lines, more than"
            f" {FUNCTION_LINES_MAX}"
        )
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
        if (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX
    }
    offenders = [message for name, message in long.items() if name not in LONG_FUNCTIONS]
    offenders += [
        f"{name} is shorter now; remove it from LONG_FUNCTIONS"
        for name in LONG_FUNCTIONS
        if name not in long
    ]
    assert not offenders, listed(offenders)


def test_module_docstrings_are_short() -> None:
    lengths = [
        (path, len((ast.get_docstring(tree(path)) or "").splitlines()))
        for path in sources()
        if path.name != "__init__.py" and path.relative_to(ROOT).parts[0] in SHORT_DOCSTRINGS
    ]
    long = [
        f"{shown(path)}: {length} lines, more than {MODULE_DOCSTRING_LINES_MAX}"
        for path, length in lengths
        if length > MODULE_DOCSTRING_LINES_MAX and shown(path) not in LONG_DOCSTRINGS
    ]
    assert lengths
    assert not long, listed(long)


def test_module_names_are_specific_and_public() -> None:
    """ruff requires docstrings only in public modules, so a private one could lack its
    docstring.
    """
    offenders = [
        shown(path)
        for path in sources()
        if path.stem in VAGUE_NAMES
        or any(
            part.startswith("_") and not part.startswith("__")
            for part in path.relative_to(ROOT).parts
        )
    ]
    assert not offenders, listed(offenders)


def test_sources_have_no_unfinished_work() -> None:
    offenders = [
        f"{shown(path, number)}: {word}"
        for path in sources()
        for word in ("TODO", "FIXME", "XXX", "NotImplementedError")
        if word in text(path)
        for number, line in enumerate(text(path).splitlines(), 1)
        if word in line
    ]
    assert not offenders, listed(offenders)


def test_generated_code_is_marked() -> None:
    generated = [
        path for path in files() if path.suffix == ".py" and "gen" in path.relative_to(ROOT).parts
    ]
    offenders = [
        f"{shown(path)}: the first lines must say that the file is generated"
        for path in generated
        if "generated" not in text(path)[:400].lower()
    ]
    assert generated
    assert not offenders, listed(offenders)
