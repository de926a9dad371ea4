"""Query topics with SQL, read from the object store."""

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.console.console import console_of, form_of, page, rights_of
from penstock.deploy.console.statements import ROWS_MAX, StatementResult, run_statement
from penstock.deploy.errors import UsageError

QUERY_CHARS_MAX = 10_000


async def show(request: Request) -> Response:
    return _page(request, "", None, "")


async def run(request: Request) -> Response:
    """Run the statement of the form; it changes nothing."""
    _need_sql(request)
    form = await form_of(request, changes=False)
    console = console_of(request)
    query = form.get("query", "").strip()[:QUERY_CHARS_MAX]
    try:
        result = await console.call(run_statement, console.options.store, query)
    except UsageError as error:
        return _page(request, query, None, str(error))
    return _page(request, query, result, "")


def _page(request: Request, query: str, result: StatementResult | None, problem: str) -> Response:
    _need_sql(request)
    return page(request, "sql.html", asked=query, result=result, problem=problem, rows_max=ROWS_MAX)


def _need_sql(request: Request) -> None:
    rights_of(request).need_everything()
    if not console_of(request).has_sql:
        raise UsageError("SQL is not installed here, or this console belongs to a node")
