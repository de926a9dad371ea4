"""Show topics, their partitions and the streams of a partition; create, alter and delete topics."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.controller.metadata.topics import is_moving
from penstock.deploy.admin.config_units import number_of
from penstock.deploy.admin.cost import prices_of
from penstock.deploy.admin.reassign.admin import elect_preferred
from penstock.deploy.admin.reassign.plan import Key
from penstock.deploy.admin.topic_sizes import TopicSizeView, topic_sizes
from penstock.deploy.admin.views import view_streams
from penstock.deploy.clients import configs
from penstock.deploy.clients.frozen_topics import delete_topic
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.console import views
from penstock.deploy.console.config_choices import choice_of
from penstock.deploy.console.console import (
    Console,
    confirmed,
    console_of,
    done,
    form_of,
    integer,
    page,
    paged,
    path_of,
    rights_of,
)
from penstock.deploy.console.exports import enabled_in, read_exports
from penstock.deploy.errors import Missing, UsageError
from penstock.deploy.output import counted
from penstock.protocol.client.errors import KafkaFailed, Refused
from penstock.protocol.error_codes import ErrorCode

TOPIC_RESOURCE = 2


async def topics(request: Request) -> Response:
    """List all topics, or those whose name contains `q`, by name or busiest first. Internal topics
    are listed only on request.
    """
    rights, live = rights_of(request), console_of(request).live
    view = await live.top()
    wanted = request.query_params.get("q", "").strip().lower()
    order = request.query_params.get("sort", "name")
    shows_internal = "internal" in request.query_params or wanted.startswith("_")
    all_found = [
        topic
        for topic in views.topics_now(live.image, view.topics)
        if rights.sees(topic.name) and wanted in topic.name.lower()
    ]
    found = [topic for topic in all_found if shows_internal or topic.name not in INTERNAL_TOPICS]
    found.sort(key=views.TOPIC_ORDERS.get(order, views.TOPIC_ORDERS["name"]))
    return page(
        request,
        "topics.html",
        page=paged(request, found),
        q=wanted,
        sort=order,
        internal=shows_internal,
        hidden=len(all_found) - len(found),
    )


async def topic(request: Request) -> Response:
    name = request.path_params["topic"]
    console = console_of(request)
    rights_of(request).need_topic(name)
    image = console.live.image
    console.live.want()
    partitions = views.view_partitions(image, name, console.live.ends(name))
    if partitions is None:
        raise Missing(f"topic {name!r} does not exist; it may have been deleted")
    enabled = enabled_in(image, lambda topic: topic == name)
    (settings, no_configs), size, exports = await asyncio.gather(
        _configs_of(console, name),
        _size_of(console, name, partitions),
        read_exports(image, console.options.store, enabled),
    )
    return page(
        request,
        "topic.html",
        name=name,
        page=paged(request, partitions),
        configs=settings,
        no_configs=no_configs,
        choices=[choice_of(item) for item in settings if item.live],
        set_configs=[item for item in settings if item.source not in configs.DEFAULT_SOURCES],
        size=size,
        price_source=prices_of(console.options.store).source,
        fork=views.fork_source(image, name),
        exports=exports,
    )


async def _configs_of(console: Console, name: str) -> tuple[list[configs.ConfigView], str]:
    """Return the configs of a topic, or none and the reason."""
    try:
        found = await console.call(
            configs.describe, console.bootstrap, (TOPIC_RESOURCE, name), with_docs=True
        )
    except KafkaFailed as error:
        return [], str(error)
    return found, ""


async def _size_of(
    console: Console, name: str, partitions: list[views.PartitionView]
) -> TopicSizeView | None:
    """Return the size of a topic, to the extent that its leaders respond."""
    silent = console.live.silent_brokers()
    leaders = {at: to for at, to in console.live.addresses().items() if at not in silent}
    topic = views.client_view(name, partitions)
    try:
        prices = prices_of(console.options.store)
        (size,) = await console.call(topic_sizes, leaders, [topic], prices)
    except KafkaFailed:
        return None
    return size


async def partition(request: Request) -> Response:
    """Show one partition with its three streams, and its last move."""
    name, index = request.path_params["topic"], request.path_params["partition"]
    live = console_of(request).live
    rights_of(request).need_topic(name)
    record = views.partition_record(live.image, name, index)
    streams = [item for item in view_streams(live.image, name) or () if item.partition == index]
    return page(
        request,
        "partition.html",
        name=name,
        index=index,
        record=record,
        is_moving=is_moving(record),
        streams=streams,
        end_offset=views.end_offset(live.image, record, live.ends(name)),
        brokers=[node for node in live.image.nodes if not node.fenced],
    )


# --- changes --------------------------------------------------------------------------------------


async def create(request: Request) -> Response:
    form = await form_of(request)
    console = console_of(request)
    name = form.get("name", "").strip()
    if not name:
        raise UsageError("a topic needs a name")
    settings = views.parse_settings(form.get("configs", ""))
    await console.call(
        Kafka(console.bootstrap).create_topic,
        name,
        integer(form.get("partitions", ""), -1),
        -1,
        settings,
    )
    await console.live.sees_topic(name)
    return done(request, "/topics", f"Created {name}.")


async def delete(request: Request) -> Response:
    form, name = await form_of(request), request.path_params["topic"]
    confirmed(form, name)
    console = console_of(request)
    frozen = await console.call(delete_topic, console.bootstrap, name)
    back = " It can come back: see Snapshots." if frozen else ""
    return done(request, "/topics", f"Deleted {name}.{back}")


async def alter_config(request: Request) -> Response:
    """Set one config of a topic, or remove it if the value is left empty."""
    form, name = await form_of(request), request.path_params["topic"]
    console = console_of(request)
    key, value = form.get("key", "").strip(), form.get("value", "").strip()
    if not key:
        raise UsageError("specify the config to change")
    changes = {key: number_of(key, value) or None}
    await console.call(configs.alter, console.bootstrap, (TOPIC_RESOURCE, name), changes)
    return done(request, path_of(request).removesuffix("/configs"), f"{key} of {name} is changed.")


async def elect(request: Request) -> Response:
    """Elect the preferred leaders of a topic's partitions."""
    await form_of(request)
    name, console = request.path_params["topic"], console_of(request)
    rights_of(request).need_topic(name)
    count = len(views.view_partitions(console.live.image, name, {}) or ())
    if not count:
        raise Missing(f"topic {name!r} does not exist; it may have been deleted")
    keys = [Key(name, index) for index in range(count)]
    elected, problems = await console.call_brokers(elect_preferred, keys)
    for key, problem in sorted(problems.items()):
        if problem[0] is not ErrorCode.ELECTION_NOT_NEEDED:
            raise Refused(f"the preferred leader of {key} was not elected", *problem)
    return done(
        request,
        path_of(request).removesuffix("/elect"),
        f"Elected preferred leaders of {counted(len(elected), 'partition')};"
        f" {count - len(elected):,} had theirs already.",
    )
