"""Show snapshots, forks and deleted topics; create, delete and restore snapshots, and undelete
topics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.admin.snapshots import (
    RestoredView,
    create_snapshot,
    delete_snapshot,
    find_snapshot,
    planned,
    restore,
    view_snapshots,
)
from penstock.deploy.clients.frozen_topics import find_deleted, frozen_topics, full_name
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.console import views
from penstock.deploy.console.console import (
    confirmed,
    console_of,
    done,
    form_of,
    page,
    paged,
    rights_of,
)
from penstock.deploy.errors import UsageError
from penstock.deploy.output import counted
from penstock.protocol.client.connection import TIMEOUT_S, wait_at_most
from penstock.protocol.client.errors import KafkaFailed


async def snapshots(request: Request) -> Response:
    console = console_of(request)
    rights = rights_of(request)
    frozen = await console.call(frozen_topics, console.bootstrap)
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


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """Options of a restore. topics: empty for all. new_name: new name of the only topic; empty to
    keep the name. replaces: whether existing topics are deleted first. groups: whether the offsets
    of consumer groups are restored.
    """

    snapshot: str
    topics: tuple[str, ...]
    new_name: str
    replaces: bool
    groups: bool


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The planned result of a restore. present: names of these topics that already exist."""

    topics: list[RestoredView]
    present: set[str]


async def snapshot(request: Request) -> Response:
    """Show the topics of one snapshot."""
    console, name = console_of(request), request.query_params.get("name", "")
    found = await console.call(find_snapshot, console.bootstrap, name)
    (view,) = view_snapshots(found)
    return page(
        request,
        "snapshot.html",
        view=view,
        page=paged(request, found),
    )


async def preview_restore(request: Request) -> Response:
    """Show the topics that a restore would create and delete."""
    console, wanted = console_of(request), _options(request.query_params)
    wait_at_most(TIMEOUT_S)
    plan = await console.call(_plan, console.bootstrap, wanted)
    return page(
        request,
        "restore.html",
        wanted=wanted,
        plan=plan,
        page=paged(request, plan.topics),
    )


def _plan(bootstrap: str, wanted: RestoreOptions) -> RestorePlan:
    found = find_snapshot(bootstrap, wanted.snapshot, wanted.topics)
    if wanted.new_name and len(found) != 1:
        raise UsageError(
            f"{wanted.new_name!r} is a name for one topic, but {len(found)} would be restored:"
            " select one"
        )
    topics = planned(bootstrap, found, new_name=wanted.new_name, replaces=True)
    known = {topic.name for topic in Kafka(bootstrap).topics()}
    return RestorePlan(topics, {view.topic for view in topics} & known)


def _options(given: Mapping[str, str]) -> RestoreOptions:
    return RestoreOptions(
        given.get("name", ""),
        tuple(_names(given.get("topics", ""))),
        given.get("as", "").strip(),
        replaces=bool(given.get("replace")),
        groups=bool(given.get("groups")),
    )


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


# --- changes --------------------------------------------------------------------------------------


async def create(request: Request) -> Response:
    form = await form_of(request)
    console = console_of(request)
    name = form.get("name", "").strip()
    topics = _names(form.get("topics", ""))
    if not name:
        raise UsageError("a snapshot needs a name")
    found = await console.call(create_snapshot, console.bootstrap, name, topics)
    topics_said = counted(len(found), "topic")
    return done(request, "/snapshots", f"Created snapshot {name} of {topics_said}.")


async def delete(request: Request) -> Response:
    form = await form_of(request)
    name = form.get("name", "")
    confirmed(form, name)
    console = console_of(request)
    found = await console.call(find_snapshot, console.bootstrap, name)
    await console.call(delete_snapshot, console.bootstrap, found)
    return done(request, "/snapshots", f"Deleted snapshot {name}.")


async def make_topics(request: Request) -> Response:
    """Restore topics. If this may replace topics, the user must type the name of the snapshot."""
    form = await form_of(request)
    console, wanted = console_of(request), _options(form)
    if wanted.replaces:
        confirmed(form, wanted.snapshot)
    views = await console.call(_restore, console.bootstrap, wanted)
    if problems := [f"{view.topic}: {text}" for view in views for text in view.problems]:
        raise KafkaFailed("some topics or groups were not restored: " + "; ".join(problems[:10]))
    groups = sum(view.groups for view in views) if wanted.groups else 0
    return done(
        request,
        "/snapshots",
        f"Restored {counted(len(views), 'topic')} of {wanted.snapshot}, and the offsets of"
        f" {counted(groups, 'group')}.",
    )


def _restore(bootstrap: str, wanted: RestoreOptions) -> Sequence[RestoredView]:
    plan = _plan(bootstrap, wanted)
    if plan.present and not wanted.replaces:
        raise UsageError(f"topic {min(plan.present)!r} exists: check the plan again")
    found = find_snapshot(bootstrap, wanted.snapshot, wanted.topics)
    return restore(
        bootstrap,
        found,
        new_name=wanted.new_name,
        replaces=wanted.replaces,
        groups=wanted.groups,
    )


async def undelete(request: Request) -> Response:
    """Restore a deleted topic under its name."""
    form = await form_of(request)
    console = console_of(request)
    name = await console.call(_undelete, console.bootstrap, form.get("topic", ""))
    await console.live.sees_topic(name)
    return done(request, f"/topics/{name}", f"{name} is back.")


def _undelete(bootstrap: str, wanted: str) -> str:
    topic = find_deleted(bootstrap, wanted)
    Kafka(bootstrap).create_topic(topic.name, -1, -1, {"penstock.undelete": str(topic.topic_id)})
    return topic.name
