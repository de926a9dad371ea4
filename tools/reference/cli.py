"""Write the pages of `docs/reference/cli/`: an index, and one page per command with arguments,
options and defaults as documented by Typer.

python -m tools.reference.cli docs/reference/cli
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from penstock.deploy.node.config.docs import first_sentence

_HEAD: Final = """\
# Command line

<!-- Written by `python -m tools.reference.cli`; do not edit. -->

These pages contain the output of `penstock COMMAND --help`.
Options with an environment variable use its value unless they are given.
`penstock broker` and `penstock controller` run a node; their options are the [settings](../configuration.md).

## Common options

`--bootstrap`, `--bootstrap-server` and `-b` specify brokers, `--command-config` a file with client properties, and `--profile` a profile.
`--command-config` and `--profile` can be anywhere in the command.
The default is the value of the environment variable, then that of the profile, then the running `penstock dev` (unless the profile specifies another cluster); without any of these, commands fail.
`penstock profile add NAME` defines a cluster and `penstock profile use NAME` selects it; profiles are stored in `penstock/profiles.toml` in `$XDG_CONFIG_HOME` or `~/.config`, with mode 0600.

Commands accept `--output table`, `json`, `yaml` or `csv` (`-o`), except those that run a process or print records, programs or other documents; `--json` and `--csv` are short for `--output json` and `--output csv`.
Standard output then contains only the result; errors and remarks are on standard error.
In machine formats, field names are stable, times are ISO 8601 in UTC, and numbers have no separators.
CSV has one row per object in the first list of objects of the JSON document, or a single row if there is none; empty results have no header.
Names of nested fields are joined with a dot, list values with a semicolon.

Destructive commands have `--dry-run`. They ask for confirmation on a terminal, and require `--yes` without one.

`penstock completion bash`, `zsh` or `fish` prints a completion script for commands, options, and the names of topics, groups, brokers, snapshots and configs.
Completion queries the cluster with a timeout of 1 s and caches names for 10 s.

## Exit codes

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the command failed, or its output lacks what a broker did not report; see the `error:` line |
| 2 | invalid usage: an unknown option, setting or value |
| 3 | a node was fenced or lost its metadata; its supervisor has to restart it |
| 130 | interrupted with Ctrl-C |

`penstock doctor` also returns 2 if a check could not be performed.

## Commands

"""
_QUOTES: Final = {"&#x27;": "'", "&quot;": '"', "&gt;": ">"}
_SECTION: Final = re.compile(r"^#+ `(?P<name>.+)`\n\n(?P<help>.+)$", re.MULTILINE)
_COMMAND: Final = re.compile(r"^\* `(?P<name>[a-z-]+)`(?:: .*)?$")
_PAGE: Final = re.compile(r"^(?=## `)", re.MULTILINE)
_MARK: Final = "<!-- Written by `python -m tools.reference.cli`; do not edit. -->"


def pages() -> dict[str, str]:
    """Return the text of each file. Runs Typer's generator in another process, which takes about 1
    s.
    """
    command = (
        sys.executable,
        "-m",
        "typer",
        "penstock.deploy.cli.app",
        "utils",
        "docs",
        "--name",
        "penstock",
    )
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603  # a fixed command
    for escaped, plain in _QUOTES.items():
        text = text.replace(escaped, plain)
    text = text.replace("**Options**:\n\n* `--help`: Show this message and exit.\n\n", "")
    sentences = _first_sentences(text)
    index, *sections = _PAGE.split(text.partition("\n\n")[2])
    found = {
        "index.md": _HEAD + "\n".join(_with_links(index.splitlines(), sentences)).strip() + "\n"
    }
    for section in sections:
        title, *lines = _with_links(section.rstrip().splitlines(), sentences)
        name = title.strip("# `").removeprefix("penstock ")
        body = "\n".join(line.removeprefix("#") if line[:2] == "##" else line for line in lines)
        found[f"{name}.md"] = f"# `penstock {name}`\n\n{_MARK}\n{body}\n"
    return found


def _first_sentences(text: str) -> dict[str, str]:
    return {found["name"]: first_sentence(found["help"]) for found in _SECTION.finditer(text)}


def _with_links(lines: list[str], sentences: dict[str, str]) -> list[str]:
    """Add links and complete sentences to lists of commands, and remove `--help`, an option of
    every command.
    """
    here, is_commands, linked = "penstock", False, list[str]()
    for line in lines:
        if line.startswith("* `--help`"):
            continue
        if line.startswith("#"):
            here = line.strip("# `")
        elif line.startswith("**"):
            is_commands = line == "**Commands**:"
        if is_commands and (found := _COMMAND.match(line)):
            name = f"{here} {found['name']}"
            place = f"#{name.replace(' ', '-')}" if " " in here else f"{found['name']}.md"
            linked.append(f"* [`{name}`]({place}): {sentences[name]}")
        else:
            linked.append(line)
    return linked


def main(folder: Path) -> None:
    """Write all pages to the folder, and delete the pages of removed commands."""
    written = pages()
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in written:
            path.unlink()
    for name, text in written.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
