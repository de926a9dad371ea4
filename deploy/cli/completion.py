"""Run `penstock completion`: print the script that completes commands in a shell."""

from typing import Annotated, Final, Literal

import typer

from penstock.deploy.cli.lazy import completion_module

# Bash splits --topic=orders into three words, and appends a space to a complete name.
_BASH: Final = """\
_penstock_completion() {
    local IFS=$'\\n' words=() count=0 word
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if (( count )) && [[ $word == = || ( ${words[count-1]} == *= && $word == [!-]* ) ]]; then
            words[count-1]+=$word
        else
            words[count]=$word
            count=$(( count + 1 ))
        fi
    done
    COMPREPLY=( $( env COMP_WORDS="${words[*]}" \\
                   COMP_CWORD=$(( count - 1 )) \\
                   _PENSTOCK_COMPLETE=complete_bash "$1" ) )
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2> /dev/null
    fi
    return 0
}

complete -o default -F _penstock_completion penstock
"""


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(help="Shell to generate the script for.")
    ],
) -> None:
    """Print the script that completes commands, options, and names of topics, groups and configs.

    Names are requested from the cluster, with a timeout of 1 s, and cached for 10 s.

    For example, in ~/.bashrc: source <(penstock completion bash)

    In ~/.zshrc, after compinit: source <(penstock completion zsh)

    Once for fish: penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    if shell == "bash":
        print(_BASH, end="")
        return
    script = completion_module().get_completion_script
    print(script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell))
