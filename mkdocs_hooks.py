"""Let lists follow a paragraph without a blank line, as on GitHub, and rank design notes and the
changelog below all other pages in the search.
"""

import re
from typing import Final

from mkdocs.structure.pages import Page

_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) ")
_FENCE: Final = re.compile(r"\s*```")


_RANKED_LAST: Final = ("design/", "changelog.md")


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Insert the blank line that Python-Markdown needs before a list."""
    if page.file.src_uri.startswith(_RANKED_LAST):
        page.meta.setdefault("search", {"boost": 0.2})
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
