"""Show the configs of brokers and groups, and alter those that can change while brokers run."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.controller.metadata.configs import BROKER_RESOURCE
from penstock.deploy.clients import configs as client
from penstock.deploy.console.console import console_of, done, form_of, page, rights_of
from penstock.deploy.errors import UsageError

_ALL_BROKERS: Final = ""


async def configs(request: Request) -> Response:
    """Show the configs of one broker; of the first live one if none is named."""
    console = console_of(request)
    known = [str(node.node_id) for node in console.live.image.nodes if not node.fenced]
    broker = request.query_params.get("broker", known[0] if known else _ALL_BROKERS)
    found = await console.call(
        client.describe, console.options.bootstrap, (BROKER_RESOURCE, broker)
    )
    wanted = request.query_params.get("q", "").strip().lower()
    return page(
        request,
        "configs.html",
        broker=broker,
        brokers=known if rights_of(request).sees_cluster else [broker],
        configs=[item for item in found if wanted in item.name],
        q=wanted,
        defaults=client.DEFAULT_SOURCES,
    )


async def alter(request: Request) -> Response:
    """Set a config of all brokers or of one, or remove it if the value is left empty."""
    form = await form_of(request)
    console = console_of(request)
    key, value, broker = (form.get(name, "").strip() for name in ("key", "value", "broker"))
    if not key:
        raise UsageError("name the config to change")
    await console.call(
        client.alter, console.options.bootstrap, (BROKER_RESOURCE, broker), {key: value or None}
    )
    whose = f"broker {broker}" if broker else "all brokers"
    return done(
        request, f"/configs?broker={broker}" if broker else "/configs", f"{key} of {whose} changed."
    )
