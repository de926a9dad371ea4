"""Show snapshots, forks and deleted topics; create and delete snapshots, and undelete topics."""

from starlette.requests import Request
from starlette.responses import Response

from deploy.clients.frozen_topics import find_deleted, frozen_topics, full_name
from deploy.clients.kafka import Kafka
from deploy.console import views
from deploy.console.console import confirmed, console_of, done, form_of, page, rights_of
from deploy.errors import UsageError
from deploy.snapshots import create_snapshot, delete_snapshot, find_snapshot, view_snapshots


async def snapshots(request: Request) -> Response:
    console = console_of(request)
    rights = rights_of(request)
    frozen = await console.call(frozen_topics, console.options.bootstrap)
    image = console.live.image
    forks = [
        (topic.name, views.fork_source(image, topic.name))
        for topic in image.topics
        if topic.partitions and topic.partitions[0].fork is not None and rights.sees(topic.name)
    ]
    return page(
        request,
        "snapshots.html",
        snapshots=view_snapshots(frozen),
        deleted=[(full_name(topic), topic) for topic in frozen if not topic.snapshot],
        forks=sorted(forks),
    )


async def create(request: Request) -> Response:
    form = await form_of(request)
    console = console_of(request)
    name = form.get("name", "").strip()
    topics = [item.strip() for item in form.get("topics", "").split(",") if item.strip()]
    if not name:
        raise UsageError("a snapshot needs a name")
    found = await console.call(create_snapshot, console.options.bootstrap, name, topics)
    return done(request, "/snapshots", f"Created snapshot {name} of {len(found):,} topics.")


async def delete(request: Request) -> Response:
    form = await form_of(request)
    name = form.get("name", "")
    confirmed(form, name)
    console = console_of(request)
    found = await console.call(find_snapshot, console.options.bootstrap, name)
    await console.call(delete_snapshot, console.options.bootstrap, found)
    return done(request, "/snapshots", f"Deleted snapshot {name}.")


async def undelete(request: Request) -> Response:
    """Let a deleted topic come back under its name."""
    form = await form_of(request)
    console = console_of(request)
    name = await console.call(_undelete, console.options.bootstrap, form.get("topic", ""))
    return done(request, f"/topics/{name}", f"{name} is back.")


def _undelete(bootstrap: str, wanted: str) -> str:
    topic = find_deleted(bootstrap, wanted)
    Kafka(bootstrap).create_topic(topic.name, -1, -1, {"penstock.undelete": str(topic.topic_id)})
    return topic.name
