"""Show where records are stored: the ranges of a stream in objects, and the blocks of an object."""

from starlette.requests import Request
from starlette.responses import Response

from penstock.base.ids import StreamId
from penstock.deploy.admin.views import view_stream
from penstock.deploy.console import views
from penstock.deploy.console.bucket import read_index
from penstock.deploy.console.console import console_of, page, paged, rights_of
from penstock.deploy.errors import Missing
from penstock.objectstore.url import location


async def stream(request: Request) -> Response:
    """Show one stream with its ranges, newest first."""
    image = console_of(request).live.image
    state = image.streams.get(StreamId(request.path_params["stream"]))
    name = "" if state is None else image.topic_name(state.topic_id)
    if state is None or not name:
        raise Missing("this stream does not exist; its topic may have been deleted")
    rights_of(request).need_topic(name)
    view = view_stream(image, state)
    return page(
        request, "stream.html", name=name, stream=view, page=paged(request, view.ranges[::-1])
    )


async def stored_object(request: Request) -> Response:
    """Show one object with its blocks, read from its index in the store."""
    rights_of(request).need_cluster()
    console = console_of(request)
    view = views.view_object(console.live.image, request.path_params["object"])
    index = await read_index(console.options.store, view.key)
    blocks = index.blocks()
    shown = paged(request, blocks)
    return page(
        request,
        "object.html",
        object=view,
        header=index.header,
        page=shown,
        rows=views.view_blocks(console.live.image, shown.rows),
        records=sum(block.record_count for block in blocks),
        place=location(console.options.store),
    )
