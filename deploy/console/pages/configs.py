"""Show the configs of brokers and groups, and alter those that can change at runtime."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.controller.metadata.configs import BROKER_RESOURCE
from penstock.deploy.admin.config_units import number_of
from penstock.deploy.clients import configs as client
from penstock.deploy.console.config_choices import choice_of
from penstock.deploy.console.console import Console, console_of, done, form_of, page, rights_of
from penstock.deploy.errors import Missing, UsageError

_ALL_BROKERS: Final = ""


async def configs(request: Request) -> Response:
    """Show the configs of one broker, by default of the first live one."""
    console = console_of(request)
    silent = console.live.silent_brokers()
    known = [str(node.node_id) for node in console.live.image.nodes if not node.fenced]
    first = [each for each in known if int(each) not in silent] or known or [_ALL_BROKERS]
    broker = request.query_params.get("broker", first[0])
    _check_exists(console, broker)
    found = await console.call(
        client.describe, console.bootstrap, (BROKER_RESOURCE, broker), with_docs=True
    )
    wanted = request.query_params.get("q", "").strip().lower()
    return page(
        request,
        "configs.html",
        broker=broker,
        brokers=known if rights_of(request).sees_cluster else [broker],
        configs=[item for item in found if wanted in item.name],
        choices=[choice_of(item) for item in found if item.live],
        q=wanted,
        defaults=client.DEFAULT_SOURCES,
    )


def _check_exists(console: Console, broker: str) -> None:
    """Raise Missing if no broker has this id. The broker does not have to be running."""
    registered = [str(node.node_id) for node in console.live.image.nodes]
    if broker and registered and broker not in registered:
        raise Missing(f"broker {broker!r} does not exist; the brokers are {', '.join(registered)}")


async def alter(request: Request) -> Response:
    """Set a config of all brokers or of one, or remove it if the value is left empty."""
    form = await form_of(request)
    console = console_of(request)
    key, value, broker = (form.get(name, "").strip() for name in ("key", "value", "broker"))
    if not key:
        raise UsageError("specify the config to change")
    _check_exists(console, broker)
    changes = {key: number_of(key, value) or None}
    await console.call(client.alter, console.bootstrap, (BROKER_RESOURCE, broker), changes)
    whose = f"broker {broker}" if broker else "all brokers"
    return done(
        request, f"/configs?broker={broker}" if broker else "/configs", f"{key} of {whose} changed."
    )
