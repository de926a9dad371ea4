"""Check that the docs site builds in strict mode and loads nothing from other hosts."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SVG_BYTES_MAX = 100_000
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?([^"'\s>]+)|<link\b[^>]*?\bhref=["']?([^"'\s>]+)"""
)


def build(into: Path, docs: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Build the site from the pages in `docs`; None: those of the repository."""
    config = ROOT / "mkdocs.yml"
    if docs is not None:
        config = into.parent / "mkdocs.yml"
        text = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: docs", f"docs_dir: {docs}")
        config.write_text(text.replace("mkdocs_hooks.py", str(ROOT / "mkdocs_hooks.py")))
    command = (
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        config,
        "--site-dir",
        into,
    )
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("docs") / "site"
    done = build(path)
    assert done.returncode == 0, done.stderr
    return path


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = {first or second for first, second in _LOADED.findall(page.read_text())}
        assert loaded, page
        assert not {url for url in loaded if re.match(r"(https?:)?//", url)}, page


def test_copy_buttons_copy_only_commands(site: Path) -> None:
    copied = copied_texts(site / "tutorials" / "first-cluster")
    assert "penstock dev" in copied
    assert not any("$ " in text or "ready:" in text for text in copied)
    statements = copied_texts(site / "reference" / "python-api")
    assert any(text.startswith("from penstock import topics\n") for text in statements)
    assert not any(">>> " in text for text in statements)


def test_the_home_page_has_the_install_command_and_a_picture(site: Path) -> None:
    assert any(text.startswith("pip install") for text in copied_texts(site))
    (picture,) = re.findall(r'<img [^>]*src="([^"]*\.png)"', (site / "index.html").read_text())
    assert (site / picture).exists()


def copied_texts(directory: Path) -> set[str]:
    """Return the text that the copy buttons of console blocks copy."""
    page = (directory / "index.html").read_text()
    return {html.unescape(text) for text in re.findall(r'data-copy="([^"]*)"', page)}


def test_design_notes_and_changelog_rank_last_in_the_search(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    boosts = {page["location"]: page.get("boost") for page in found}
    assert boosts["design/wal/"] == boosts["changelog/"] == 0.2
    assert boosts["explanation/architecture/"] is None


def test_diagrams_are_small_and_included_in_the_site(site: Path) -> None:
    drawings = sorted((ROOT / "docs").rglob("*.svg"))
    assert drawings
    for drawing in drawings:
        assert drawing.stat().st_size < SVG_BYTES_MAX
        assert (site / drawing.relative_to(ROOT / "docs")).exists()


def test_broken_links_and_anchors_fail_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "assets").mkdir(parents=True)
    (docs / "assets" / "extra.css").write_text("")
    (docs / ".nav.yml").write_text("nav: [index.md]\n")
    (docs / "index.md").write_text("# Page\n\n[page](missing.md) [anchor](index.md#missing)\n")
    done = build(tmp_path / "site", docs)
    assert done.returncode != 0
    assert "but the target is not found" in done.stderr
    assert "there is no such anchor" in done.stderr
