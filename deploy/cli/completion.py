"""Run `penstock completion`: print the script that completes commands in a shell."""

from enum import StrEnum
from typing import Annotated

import typer

from deploy.cli.lazy import completion_module


class _Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[_Shell, typer.Argument(help="The shell that runs the script.")],
) -> None:
    """Print the script that completes commands, options, and names of topics, groups and configs.

    Names come from the cluster, within 1 s, and are kept for 10 s.

    For example, in ~/.bashrc: source <(penstock completion bash)

    In ~/.zshrc, behind compinit: source <(penstock completion zsh)

    Once for fish: penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    script = completion_module().get_completion_script
    print(script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell.value))
