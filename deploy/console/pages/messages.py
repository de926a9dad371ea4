"""Browse records of a topic by key, value, time or offset, read from the object store and decoded
by their schemas.
"""

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.console.console import console_of, integer, page, rights_of, utc_time
from penstock.deploy.console.decoding import TopicDecoder
from penstock.deploy.console.records import LIMITS, STARTS, RecordSelection, find_records
from penstock.deploy.errors import UsageError


async def messages(request: Request) -> Response:
    name = request.path_params["topic"]
    rights_of(request).need_topic(name, records=True)
    console = console_of(request)
    query = query_of(name, request.query_params)
    image = console.live.image if console.options.controller else None
    topic = None if image is None else image.topics.by_name(name)
    configs = dict[str, str]() if image is None else image.configs.topic(name)
    decoder = TopicDecoder(configs, console.schemas, console.decoding)
    options = console.options
    found = await console.search(
        find_records, options.store, query, decoder.show, wal_store=options.wal_store
    )
    return page(
        request,
        "messages.html",
        name=name,
        requested=query,
        found=found,
        starts=STARTS,
        limits=LIMITS,
        partitions=len(found.bounds) if topic is None else len(topic.partitions),
    )


def query_of(topic: str, given: QueryParams) -> RecordSelection:
    """Parse the form of the page. Raises UsageError."""
    start = given.get("start", "newest")
    if start not in STARTS:
        raise UsageError(f"start={start} is not allowed: one of {', '.join(STARTS)}")
    since = utc_time(given.get("since", "")) if start == "time" else None
    limit = integer(given.get("limit", ""), LIMITS[0])
    partition = given.get("partition", "")
    return RecordSelection(
        topic=topic,
        partition=integer(partition) if partition else None,
        start=start,
        offset=max(0, integer(given.get("offset", ""))),
        since=since,
        key=given.get("key", ""),
        value=given.get("value", ""),
        limit=limit if limit in LIMITS else LIMITS[0],
    )
