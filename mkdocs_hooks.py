"""Let MkDocs read lists as GitHub does: a list may follow a paragraph without a blank line between
them.
"""

import re
from typing import Final

_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) ")
_FENCE: Final = re.compile(r"\s*```")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Insert the blank line that Python-Markdown needs before a list."""
    lines: list[str] = []
    is_code = is_list = False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            is_item = bool(_ITEM.match(line))
            if is_item and not is_list and lines and lines[-1].strip():
                lines.append("")
            is_list = is_item or (is_list and line.startswith(" "))
        lines.append(line)
    return "\n".join(lines)
