"""Run `penstock doctor`, one examination at a time, and show findings with remedies."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from penstock.deploy.console.console import Console, console_of, done, form_of, page, rights_of
from penstock.deploy.doctor.examination import DoctorOptions, Examination
from penstock.deploy.doctor.report import Report
from penstock.deploy.errors import UsageError


async def doctor(request: Request) -> Response:
    rights_of(request).need_everything()
    return page(request, "doctor.html", report=console_of(request).report)


async def examine(request: Request) -> Response:
    """Examine the cluster without changing it. Lists the bucket if `objects` is set."""
    form = await form_of(request, changes=False)
    rights_of(request).need_everything()
    console = console_of(request)
    if console.examining.locked():
        raise UsageError("an examination is in progress; its report will appear here")
    async with console.examining:
        console.report = await console.call(_examine, console, form.get("objects") == "on")
    return done(request, "/doctor", "")


def _examine(console: Console, objects: bool) -> Report:
    store = console.options.store
    options = DoctorOptions(
        store="" if store.startswith("memory:") else store,
        wal_store=console.options.wal_store,
        controllers=console.options.controller,
        objects=objects,
        settle_s=2.0,
    )
    return asyncio.run(Examination(options, lambda _what, _count: None, lambda _found: False).run())
