"""Write `docs/reference/cli.md`: every command with its arguments, options and defaults, as Typer
documents them.

    python -m tools.reference.cli > docs/reference/cli.md

Invariant: repeatable; the file in `docs/` is this output, byte for byte (a test compares).
"""

import re
import subprocess
import sys
from typing import Final

from penstock.deploy.node.config.docs import first_sentence

_HEAD: Final = """\
# Command line

<!-- Written by `python -m tools.reference.cli`; do not edit. -->

`penstock --help` and `penstock COMMAND --help` print the same text.
An option with an environment variable takes its value from there when the option is absent.
`penstock broker` and `penstock controller` without a subcommand run one node.
Their options are the settings of the node, listed under [Configuration](configuration.md).

## Options of all commands

`--bootstrap`, `--bootstrap-server` and `-b` name brokers, `--command-config` a file of client properties, and `--profile` a profile.
`--command-config` and `--profile` can be anywhere in the command.
A value that no option gives comes from the environment variable, else from the profile, else from the running `penstock dev` (not if the profile names another cluster), else the brokers are at 127.0.0.1:9092.
`penstock profile add NAME` names a cluster, and `penstock profile use NAME` chooses it; the file is `penstock/profiles.toml` in `$XDG_CONFIG_HOME` or `~/.config`, with mode 0600.

Every command that answers takes `--output table`, `json`, `yaml` or `csv` (`-o`); `--json` and `--csv` are short for `--output json` and `--output csv`.
Fields of machine formats keep their names, times are ISO 8601 in UTC, and numbers have no separators.
CSV has one row for each object in the first list of objects of the JSON document, or one row without such a list; empty answers have no header.
Fields of nested objects have both names, joined by a dot; the values of a list are joined by a semicolon.

Commands that change or delete something for good have `--dry-run`, which shows what would happen; those that delete or overwrite topics, records, snapshots, groups and their offsets, users, tokens or ACLs ask first on a terminal, unless `--yes` or a machine format is given.

`penstock completion bash`, `zsh` or `fish` prints a script that completes commands, options, and names of topics, groups, brokers, snapshots and configs.
It asks the cluster for at most 1 s, and keeps the names for 10 s.

## Exit codes

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the command failed; one `error:` line says why |
| 2 | the command was called wrongly: an unknown option, setting or value |
| 3 | a node was fenced or lost its metadata, and did not start again by itself; its supervisor starts it again |
| 130 | interrupted with Ctrl-C |

`penstock doctor` also uses 2 when a check could not be made.

"""
_QUOTES: Final = {"&#x27;": "'", "&quot;": '"', "&gt;": ">"}
_SECTION: Final = re.compile(r"^#+ `(?P<name>.+)`\n\n(?P<help>.+)$", re.MULTILINE)
_COMMAND: Final = re.compile(r"^\* `(?P<name>[a-z-]+)`(?:: .*)?$")


def markdown() -> str:
    """Return the page. Runs Typer's generator in another process, which takes about 1 s."""
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
    _, _, body = text.partition("\n\n")
    return _HEAD + "\n".join(_with_links(body.rstrip().splitlines(), _first_sentences(text))) + "\n"


def _first_sentences(text: str) -> dict[str, str]:
    return {found["name"]: first_sentence(found["help"]) for found in _SECTION.finditer(text)}


def _with_links(lines: list[str], sentences: dict[str, str]) -> list[str]:
    """Add whole sentences and links to lists of commands, and remove `--help`, which every command
    has.
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
            linked.append(f"* [`{name}`](#{name.replace(' ', '-')}): {sentences[name]}")
        else:
            linked.append(line)
    return linked


if __name__ == "__main__":
    sys.stdout.write(markdown())
