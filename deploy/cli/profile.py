"""Run `penstock profile`: manage cluster profiles."""

import os
from typing import Annotated

import typer

from penstock.deploy.cli.completing import complete_profiles
from penstock.deploy.cli.options import Output
from penstock.deploy.clients import profiles
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, report, report_table

app = typer.Typer(
    help="Manage cluster profiles, and select the one that commands use.", no_args_is_help=True
)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the profile.", autocompletion=complete_profiles),
]


@app.command("add")
def add(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Profile name: letters, digits, '_' and '-'."),
    ],
    *,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap", "--bootstrap-server", "-b", help="Addresses of brokers, as HOST:PORT."
        ),
    ] = "",
    controller: Annotated[str, typer.Option(help="Addresses of controllers.")] = "",
    store: Annotated[str, typer.Option(help="Store of the brokers.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite an existing profile.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Add a profile. The first profile becomes the active one.

    The profile contains only the path of the client properties file in --command-config, not its
    secrets.

    For example: penstock profile add prod -b kafka1:9092 --command-config prod.properties
    """
    from penstock.deploy.clients.security import chosen_file, read_file

    profiles.check_name(name)
    file = chosen_file()
    if not (bootstrap or file or controller or store):
        raise UsageError("the profile is empty: add --bootstrap HOST:PORT")
    if file is not None:
        read_file(file)
    path = profiles.default_path(os.environ)
    found = profiles.read(path)
    if name in found.profiles and not replace:
        raise UsageError(f"profile {name!r} exists; use --replace to overwrite it")
    added = profiles.Profile(
        bootstrap=bootstrap,
        command_config="" if file is None else str(file.absolute()),
        controller=controller,
        store=store,
    )
    active = found.active if found.profiles else name
    profiles.write(path, profiles.Profiles(active=active, profiles={**found.profiles, name: added}))
    view = {"name": name, "active": active == name, **_shown(added)}
    report(output, view, f"added {name}" + (", which is active now" if active == name else ""))


@app.command("list")
def list_(*, output: Output = Format.TABLE) -> None:
    """List the profiles, and mark the active one.

    For example: penstock profile list --output json
    """
    found = profiles.read(profiles.default_path(os.environ))
    views = [
        {"name": name, "active": name == found.active, **_shown(profile)}
        for name, profile in sorted(found.profiles.items())
    ]
    columns = ("profile", "active", "bootstrap", "command config", "controller", "store")
    rows = [[value or "-" for value in view.values()] for view in views]
    report_table(output, views, "", columns, rows)


@app.command("show")
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the profile.",
            autocompletion=complete_profiles,
            show_default="the active one",
        ),
    ] = "",
    *,
    output: Output = Format.TABLE,
) -> None:
    """Show one profile. Prints the path of the client properties file, but no secrets.

    For example: penstock profile show prod
    """
    path = profiles.default_path(os.environ)
    found = profiles.read(path)
    name = name or profiles.current_profile().name or found.active
    if not name:
        raise UsageError("no profile is active; specify one, or see `penstock profile list`")
    view = {"name": name, **_shown(profiles.named(found, name, path))}
    rows = [(key, value or "-") for key, value in view.items()]
    report_table(output, view, "", ("", "value"), rows)


@app.command("use")
def use(name: Name, *, output: Output = Format.TABLE) -> None:
    """Activate a profile: commands without --profile use it.

    For example: penstock profile use prod
    """
    path = profiles.default_path(os.environ)
    found = profiles.read(path)
    used = profiles.named(found, name, path)
    profiles.write(path, profiles.Profiles(active=name, profiles=found.profiles))
    view = {"name": name, "active": True, **_shown(used)}
    report(output, view, f"{name} is active" + (f": {used.bootstrap}" if used.bootstrap else ""))


@app.command("remove")
def remove(name: Name, *, output: Output = Format.TABLE) -> None:
    """Remove a profile. The cluster itself is not affected.

    For example: penstock profile remove staging
    """
    path = profiles.default_path(os.environ)
    found = profiles.read(path)
    profiles.named(found, name, path)
    rest = {key: profile for key, profile in found.profiles.items() if key != name}
    active = "" if found.active == name else found.active
    profiles.write(path, profiles.Profiles(active=active, profiles=rest))
    report(output, {"name": name}, f"removed {name}")


def _shown(profile: profiles.Profile) -> dict[str, str]:
    """Return the fields without passwords in addresses."""
    from penstock.objectstore.url import redact_url

    return {
        "bootstrap": profile.bootstrap,
        "command_config": profile.command_config,
        "controller": profile.controller,
        "store": redact_url(profile.store) if profile.store else "",
    }
