"""Run `penstock config show|docs|schema`: print effective settings, their documentation and their
JSON schema.
"""

from typing import Annotated

import typer

from penstock.deploy.cli.options import Output
from penstock.deploy.output import Format, report_table

app = typer.Typer(
    help=(
        "Show effective settings of nodes, and document all settings. `penstock configs` describes"
        " and alters the configs of topics and brokers."
    ),
    no_args_is_help=True,
)

_AS_A_NODE = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(context_settings=_AS_A_NODE)
def show(
    context: typer.Context,
    *,
    role: Annotated[str, typer.Option(help="Role of the node: broker | controller.")] = "broker",
    given_only: Annotated[bool, typer.Option("--given", help="Omit defaults.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show the settings that a node with this environment and these flags would use, and the source
    of each value. Secrets are hidden.

    Takes the flags of `penstock broker` or `penstock controller` (--config FILE, --set KEY=VALUE,
    --listeners ...).

    For example: penstock config show --given
    """
    from penstock.deploy.errors import UsageError
    from penstock.deploy.node.config.definition import ROLES, Role
    from penstock.deploy.node.config.load import load

    roles: dict[str, Role] = {each: each for each in ROLES}
    known = roles.get(role)
    if known is None:
        raise UsageError(f"--role {role} is not allowed: {', '.join(ROLES)}")
    values = load(known, context.args, complete=False).values
    chosen = {
        name: value for name, value in values.items() if not (given_only and value.is_default)
    }
    document = {
        name: {"value": value.text, "source": value.place} for name, value in chosen.items()
    }
    rows = [(name, value.shown or "-", value.place) for name, value in chosen.items()]
    report_table(output, document, "", ["Setting", "Value", "Source"], rows)


@app.command()
def docs() -> None:
    """Print the reference of all settings as Markdown: docs/reference/configuration.md.

    For example: penstock config docs
    """
    from penstock.deploy.node.config.docs import markdown

    print(markdown(), end="")


@app.command()
def schema() -> None:
    """Print a JSON schema of `config.broker` and `config.controller`, for the values of a chart.

    For example: penstock config schema
    """
    import json

    from penstock.deploy.node.config.schema import schema as whole

    print(json.dumps(whole(), indent=2))
