"""Create, list, renew and expire delegation tokens: `penstock tokens`."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.deploy.cli.confirmation import confirm
from penstock.deploy.cli.options import BOOTSTRAP, Bootstrap, DryRun, Output, Yes
from penstock.deploy.errors import UsageError
from penstock.deploy.output import Format, iso_time, report, report_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.deploy.clients.delegation_tokens import TokenView
    from penstock.deploy.clients.wire import WireClient

app = typer.Typer(
    help=(
        "Manage delegation tokens, with which jobs authenticate as their owner for a limited time."
    ),
    no_args_is_help=True,
)
_Token = Annotated[str, typer.Argument(metavar="TOKEN_ID", help="Id of the token.")]
_PERIOD: Final = "as long as the brokers allow"


@app.command("create")
def create(
    *,
    owner: Annotated[
        str | None, typer.Option(help="Owner of the token.", show_default="the user who asks")
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option(
            help="Additional user who may renew and expire the token. Repeatable.",
            show_default=False,
        ),
    ] = None,
    max_lifetime: Annotated[
        str | None,
        typer.Option(
            help="Maximum lifetime including renewals, such as 12h or 7d.", show_default=_PERIOD
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Create a token for yourself or, with the ACL CreateTokens, for another user.

    Prints its id and password, which clients use with SCRAM and tokenauth="true".

    For example: penstock tokens create --renewer spark --max-lifetime 2d
    """
    from penstock.deploy.clients.delegation_tokens import create_token
    from penstock.deploy.clients.wire import WireClient

    lifetime_ms = _period_ms("--max-lifetime", max_lifetime)
    with WireClient(bootstrap) as client:
        token = create_token(client, owner, renewer or [], lifetime_ms)
    report(
        output,
        _document(token),
        f"token:    {token.token_id}",
        f"password: {token.password}",
        f"owner:    {token.owner}",
        f"expires:  {iso_time(token.expires_ms)}, and at the latest {iso_time(token.max_ms)} if it"
        " is renewed",
    )


@app.command("list")
def list_(
    *,
    owner: Annotated[
        str | None, typer.Option(help="Only tokens of this owner.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """List the tokens that you own, have created, may renew or may describe.

    Machine-readable formats include the passwords.

    For example: penstock tokens list --owner alice
    """
    from penstock.deploy.clients.delegation_tokens import list_tokens
    from penstock.deploy.clients.wire import WireClient

    with WireClient(bootstrap) as client:
        tokens = list_tokens(client, owner)
    report_table(
        output,
        [_document(token) for token in tokens],
        "tokens",
        ("token", "owner", "created by", "renewers", "expires", "latest"),
        [
            (
                token.token_id,
                token.owner,
                token.requester,
                ", ".join(token.renewers),
                iso_time(token.expires_ms),
                iso_time(token.max_ms),
            )
            for token in tokens
        ],
    )


@app.command("renew")
def renew(
    token_id: _Token,
    *,
    period: Annotated[
        str | None,
        typer.Option(help="Time from now, such as 12h or 1d.", show_default=_PERIOD),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Extend the expiry of a token, up to its maximum lifetime.

    For example: penstock tokens renew 1f0c2f5e-3b3e-4a4e-9a53-6d2b0f6f9a11
    """
    from penstock.deploy.clients.delegation_tokens import renew_token
    from penstock.deploy.clients.wire import WireClient

    period_ms = _period_ms("--period", period)
    with WireClient(bootstrap) as client:
        expires_ms = renew_token(client, _found(client, token_id), period_ms)
    expires = iso_time(expires_ms)
    view = {"token_id": token_id, "expires": expires}
    report(output, view, f"token {token_id} expires {expires}")


@app.command("expire")
def expire(
    token_id: _Token,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Expire a token: new logins with it fail immediately. Open connections remain until the token
    would have expired.

    For example: penstock tokens expire 1f0c2f5e-3b3e-4a4e-9a53-6d2b0f6f9a11 --dry-run
    """
    from penstock.deploy.clients.delegation_tokens import expire_token
    from penstock.deploy.clients.wire import WireClient

    with WireClient(bootstrap) as client:
        token = _found(client, token_id)
        view = {"token_id": token_id, "owner": token.owner, "dry_run": dry_run}
        shown = f"token {token_id} of {token.owner}"
        if dry_run:
            report(output, view, f"would expire {shown}")
            return
        confirm(f"expire {shown}?", yes=yes)
        expire_token(client, token)
    report(output, view, f"expired {shown}")


def _found(client: "WireClient", token_id: str) -> "TokenView":
    from penstock.deploy.clients.delegation_tokens import list_tokens

    found: Sequence[TokenView] = [
        token for token in list_tokens(client) if token.token_id == token_id
    ]
    if not found:
        raise UsageError(
            f"token {token_id!r} does not exist, or you may not describe it: see `penstock tokens "
            "list`"
        )
    return found[0]


def _document(token: "TokenView") -> dict[str, object]:
    return {
        "token_id": token.token_id,
        "password": token.password,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": token.renewers,
        "issued": iso_time(token.issued_ms),
        "expires": iso_time(token.expires_ms),
        "latest": iso_time(token.max_ms),
    }


def _period_ms(option: str, given: str | None) -> int:
    from penstock.base.settings import Kind, Setting, SettingInvalid, parse
    from penstock.deploy.clients.delegation_tokens import DEFAULT_PERIOD

    if given is None:
        return DEFAULT_PERIOD
    try:
        period_ms = parse(Setting(option, Kind.DURATION, 1), given)
    except SettingInvalid as error:
        raise UsageError(str(error)) from None
    assert isinstance(period_ms, int)
    return period_ms
