"""Write a document as YAML with escapes for all non-printable characters.

Invariant: pure; readers of YAML get the same document. Texts with such characters are
double-quoted, because no other style has escapes.
"""

from importlib import import_module
from typing import Any, Final

from penstock.base.printable import printable

_STRING: Final = "tag:yaml.org,2002:str"


def encode_yaml(value: Any) -> str:  # noqa: ANN401 - any document
    """Return the document. value: the result of `msgspec.to_builtins`."""
    yaml: Any = import_module("yaml")  # has no types
    dumper: Any = type("Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
    dumper.add_representer(str, _represented)
    document: str = yaml.dump(value, Dumper=dumper, allow_unicode=True, sort_keys=False)
    # PyYAML does not escape direction marks and line separators.
    return printable(document, kept="\n")


def _represented(dumper: Any, text: str) -> Any:  # noqa: ANN401 - PyYAML has no types
    return dumper.represent_scalar(_STRING, text, style=None if text.isprintable() else '"')
