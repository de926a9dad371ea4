"""Query topics with SQL, read from the object store."""

import asyncio
from threading import Event

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.console.console import console_of, form_of, page, rights_of
from penstock.deploy.console.statements import ROWS_MAX, StatementResult, run_statement
from penstock.deploy.errors import UsageError

QUERY_CHARS_MAX = 10_000


async def show(request: Request) -> Response:
    return _page(request, "", None, "")


async def run(request: Request) -> Response:
    """Run the statement in the form. Statements never change anything."""
    _need_sql(request)
    form = await form_of(request, changes=False)
    console = console_of(request)
    query = form.get("query", "").strip()[:QUERY_CHARS_MAX]
    try:
        async with console.statement_turn():
            result = await _run_until_gone(request, query)
    except UsageError as error:
        return _page(request, query, None, str(error))
    return _page(request, query, result, "")


async def _run_until_gone(request: Request, query: str) -> StatementResult:
    """Run a statement, and cancel it when the browser closes its connection."""
    cancel = Event()
    options = console_of(request).options
    running = asyncio.ensure_future(
        asyncio.to_thread(run_statement, options.store, query, cancel, wal_store=options.wal_store)
    )
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:  # this also happens when the console stops
        gone.cancel()
        if not running.done():
            cancel.set()
    return await running


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _page(request: Request, query: str, result: StatementResult | None, problem: str) -> Response:
    _need_sql(request)
    return page(
        request, "sql.html", requested=query, result=result, problem=problem, rows_max=ROWS_MAX
    )


def _need_sql(request: Request) -> None:
    rights_of(request).need_everything()
    if not console_of(request).has_sql:
        raise UsageError("SQL is not installed here, or this console belongs to a node")
