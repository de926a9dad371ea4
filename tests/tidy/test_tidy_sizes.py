"""Check the house rules that ruff does not have: sizes, module names, no unfinished work, and a
mark on generated code.

A function above 80 lines or a file above 600 lines usually holds two things: find the noun by which
to split it. A file that is one thing may be longer. The test therefore fails only above 900 lines,
so that nobody cuts a file just to pass. A function above 80 lines fails unless LONG_FUNCTIONS names
it with a reason. ruff checks complexity and the docstrings of modules (D100, D104).
"""

import ast

from tests.tidy.repository import ROOT, files, listed, shown, sources, text, tree

FILE_LINES_MAX = 900
FUNCTION_LINES_MAX = 80
TEST_NAME_CHARACTERS_MAX = 79
LONG_FUNCTIONS: dict[str, str] = {}
"""Longer functions that are better in one piece, as path:name, with the reason."""
DRAWERS = {"utils", "util", "helpers", "common", "misc"}


def test_files_are_not_too_long() -> None:
    lengths = [(path, len(text(path).splitlines())) for path in sources()]
    long = [
        f"{shown(path)}: {length} lines, more than {FILE_LINES_MAX}; split it by noun"
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
        f"{name} is no longer that long; take it out of LONG_FUNCTIONS"
        for name in LONG_FUNCTIONS
        if name not in long
    ]
    assert not offenders, listed(offenders)


def test_names_of_tests_fit_on_a_line() -> None:
    offenders = [
        f"{shown(path, node.lineno)}: {node.name} has {len(node.name)} characters, more than"
        f" {TEST_NAME_CHARACTERS_MAX}; name the behavior, and put the rest into the docstring"
        for path in files()
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name) > TEST_NAME_CHARACTERS_MAX
    ]
    assert not offenders, listed(offenders)


def test_modules_are_named_by_a_noun() -> None:
    """Refuse vague names and leading underscores.

    ruff requires docstrings of public modules only, so a private module could lack one.
    """
    offenders = [
        f"{shown(path)}: name it by the noun that it is about"
        for path in sources()
        if path.stem in DRAWERS
        or any(
            part.startswith("_") and not part.startswith("__")
            for part in path.relative_to(ROOT).parts
        )
    ]
    assert not offenders, listed(offenders)


def test_sources_have_no_unfinished_work() -> None:
    offenders = [
        f"{shown(path, number)}: {word}; do it, or open an issue"
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
        f"{shown(path)}: say in the first lines that it is generated"
        for path in generated
        if "generated" not in text(path)[:400].lower()
    ]
    assert generated
    assert not offenders, listed(offenders)
