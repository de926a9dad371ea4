"""Show transactions: their states at coordinators, and open ones in partitions."""

from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import Response

from penstock.base.clock import wall_ms
from penstock.deploy.admin.transactions.admin import TransactionsClient
from penstock.deploy.admin.transactions.views import (
    ListedTransaction,
    OpenTransaction,
    TransactionView,
)
from penstock.deploy.console.console import console_of, page, paged
from penstock.deploy.console.paging import page_of

HANGING_MS = 15 * 60_000
"""Age from which `penstock transactions find-hanging` examines an open transaction."""


async def transactions(request: Request) -> Response:
    console = console_of(request)
    state = request.query_params.get("state", "")
    silent = console.live.silent_brokers()
    listed, still_open = await console.call(_listed, console.bootstrap, silent, state)
    return page(
        request,
        "transactions.html",
        page=paged(request, listed),
        open_page=page_of(still_open, 1),
        state=state,
        silent=sorted(silent & console.live.addresses().keys()),
        now_ms=wall_ms(),
        old_ms=HANGING_MS,
    )


async def transaction(request: Request) -> Response:
    console = console_of(request)
    view = await console.call(_described, console.bootstrap, request.query_params.get("id", ""))
    return page(request, "transaction.html", view=view, now_ms=wall_ms())


def _listed(
    bootstrap: str, silent: Collection[int], state: str
) -> tuple[list[ListedTransaction], list[OpenTransaction]]:
    with TransactionsClient(bootstrap, silent) as client:
        listed = client.listed([state] if state else ())
        return listed, client.open_transactions() if listed and not silent else []


def _described(bootstrap: str, transactional_id: str) -> TransactionView:
    with TransactionsClient(bootstrap) as client:
        return client.describe(transactional_id)
