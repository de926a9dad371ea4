"""Write `docs/reference/python-api.md` from the signatures and docstrings of the public Python API.

python -m tools.reference.python_api > docs/reference/python-api.md
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Final

import penstock
import penstock.spark

_HEAD: Final = """\
# Python API

<!-- Written by `python -m tools.reference.python_api`; do not edit. -->

`penstock` is the public package; all modules below it are internal, except `penstock.spark` and the [pytest plugin](pytest.md).
Names are imported on first use, so `import penstock` is fast and needs no extra.
The `local` extra contains the packages of `scan`, `sql` and `Cluster(store="moto")`; the extras `reader` and `sql` make them faster.
`penstock.spark` needs the `spark` extra ([installation](../install.md#extras)).
"""
LINE_CHARACTERS_MAX: Final = 90
_FUNCTIONS: Final = ("scan", "sql", "topics")
_CLASSES: Final = ("Scan", "SqlResult", "Topic", "ValueFormat", "Cluster")
_SECTION: Final = re.compile(
    r"^(Args|Attributes|Returns|Raises|Example):\n((?:    .*\n|\n)+)", re.MULTILINE
)
_ENTRY: Final = re.compile(r"(?<=\n)(?=\S)")
_TITLES: Final = {"Args": "Arguments"}
_MODULES: Final = re.compile(r"\b(?:penstock|collections|datetime|threading|uuid)(?:\.[a-z_]+)*\.")


def markdown() -> str:
    """Return the page."""
    parts = [_HEAD, "## Functions\n"]
    parts += [_member(name, getattr(penstock, name)) for name in _FUNCTIONS]
    parts += [
        _member(f"penstock.spark.{name}", getattr(penstock.spark, name))
        for name in sorted(penstock.spark.__all__)
    ]
    parts.append("## Classes\n")
    parts += ["\n".join(_class(name, getattr(penstock, name))) for name in _CLASSES]
    errors = [
        (name, kind)
        for name in penstock.__all__
        if inspect.isclass(kind := getattr(penstock, name)) and issubclass(kind, Exception)
    ]
    parts += ["## Exceptions\n", "| exception | meaning |\n|---|---|"]
    parts += [f"| `{name}` | {' '.join((kind.__doc__ or '').split())} |" for name, kind in errors]
    return "\n".join(parts) + "\n"


def _class(name: str, kind: type) -> Iterator[str]:
    yield _member(name, kind, signature=name in {"Cluster", "ValueFormat"})
    for method, value in vars(kind).items():
        if method.startswith("_") or not inspect.getdoc(value):
            continue
        if inspect.isfunction(value):
            yield _member(f"{name}.{method}", value, level=4)
        elif isinstance(value, property):
            yield f"#### `{name}.{method}`\n\n{_text(value)}"


def _member(
    name: str, value: Callable[..., object], *, level: int = 3, signature: bool = True
) -> str:
    title = f"{'#' * level} `{name}`\n"
    if not signature:
        return f"{title}\n{_text(value)}"
    return (
        f"{title}\n```python\n{_signature(name.rpartition('.')[2], value)}\n```\n\n{_text(value)}"
    )


def _signature(name: str, value: Callable[..., object]) -> str:
    """Return the signature as source, with one argument per line if it is long."""
    signature = inspect.signature(value)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    named = [str(p) for p in parameters if p.kind is p.KEYWORD_ONLY]
    arguments = [str(p) for p in parameters if p.kind is not p.KEYWORD_ONLY]
    arguments += ["*", *named] if named else []
    returned = signature.return_annotation
    end = "" if returned in {None, signature.empty} else f" -> {inspect.formatannotation(returned)}"
    line = f"{name}({', '.join(arguments)}){end}"
    if len(line) > LINE_CHARACTERS_MAX:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in arguments) + f"){end}"
    return _MODULES.sub("", line).replace("'Scan'", "Scan")


def _text(value: object) -> str:
    """Return the docstring as Markdown."""
    return _SECTION.sub(_section, (inspect.getdoc(value) or "") + "\n").strip() + "\n"


def _section(found: re.Match[str]) -> str:
    title, body = found[1], inspect.cleandoc(found[2])
    if title == "Example":
        return f"```python\n{body}\n```\n"
    head = f"**{_TITLES.get(title, title)}**\n\n"
    if title == "Returns":
        return f"{head}{' '.join(body.split())}\n\n"
    entries = [" ".join(entry.split()) for entry in _ENTRY.split(body)]
    items: list[str] = []
    for entry in entries:
        names, _, text = entry.partition(": ")
        items.append(f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {text}")
    return head + "\n".join(items) + "\n\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
