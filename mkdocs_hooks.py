"""Adapt pages for the site: lists without a blank line before them, copy buttons that copy only the
commands of a console block or a Python session, the changelog as a page, and design notes ranked
last in the search.
"""

import html
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_CHANGELOG: Final = "changelog.md"
_RANKED_LAST: Final = ("design/", _CHANGELOG)
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) ")
_FENCE: Final = re.compile(r"\s*```")
_CODE: Final = re.compile(
    r'<div class="highlight">(<pre><span></span><code>(.*?)</code></pre></div>)', re.DOTALL
)
_TAG: Final = re.compile(r"<[^>]+>")
_HEREDOC: Final = re.compile(r"<<-?\s*'?(\w+)'?")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, whose source is outside of `docs/`."""
    changelog = Path(__file__).parent / "CHANGELOG.md"
    files.append(File.generated(config, _CHANGELOG, content=changelog.read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Insert the blank line that Python-Markdown needs before a list."""
    if page.file.src_uri.startswith(_RANKED_LAST):
        page.meta.setdefault("search", {"boost": 0.2})
    if page.file.src_uri == _CHANGELOG:
        markdown = markdown.replace("](docs/", "](")
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


def on_page_content(content: str, **_: object) -> str:
    """Make the copy buttons of console blocks copy the commands without prompts and output."""
    return _CODE.sub(_with_commands, content)


def _with_commands(block: re.Match[str]) -> str:
    copied = commands(html.unescape(_TAG.sub("", block[2])))
    if not copied:
        return block[0]
    attribute = html.escape(copied).replace("\n", "&#10;")
    return f'<div class="highlight" data-copy="{attribute}">{block[1]}'


def commands(text: str) -> str:
    """Return the commands of a console block, with continued lines and here-documents, or the
    statements of a Python session.
    """
    found: list[str] = []
    end = ""
    is_continued = False
    is_session = text.startswith(">>> ")
    for line in text.splitlines():
        if is_session:
            found += [line[4:]] if line.startswith((">>> ", "... ")) else []
        elif line.startswith("$ ") or is_continued or end:
            command = line if is_continued or end else line[2:]
            found.append(command)
            end = "" if end and command.strip() == end else end
            is_continued = command.endswith("\\")
            if match := _HEREDOC.search(command):
                end = match[1]
    return "\n".join(found)
