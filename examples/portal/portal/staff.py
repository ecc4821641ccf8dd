"""Pages of the staff: checks of departments, a broadcast to all members, the report, and tasks that failed for good."""

from typing import Any, Final, cast

import httpx2
from litestar import Response, get, post
from litestar.exceptions import ClientException, NotFoundException
from sqlalchemy import CursorResult, select, update

from . import jobs
from .desk import Asked, field_of, go, page, services_of, sessions_of, staff_of
from .tables import Account, new_id


@get("/staff")
async def staff_page(request: Asked) -> Response[str]:
    """The staff page: accounts and failed tasks that wait for a decision."""
    services = services_of(request.app.state)
    staff_of(request)
    async with services.reading() as session:
        waiting = (await session.scalars(select(Account).where(Account.state == "waiting").limit(100))).all()
    dead = []
    for topic in jobs.tasks.handlers:
        said = await services.ask("GET", f"topics/{topic}/dead", params={"limit": 20})
        dead += [(topic, letter) for letter in said["letters"]]
    return page(request, "staff.html", waiting=waiting, dead=dead)


@post("/staff/checks/{id:int}", status_code=200)
async def check(request: Asked, id: int) -> Response[Any]:
    """Let a department write, or refuse it."""
    services = services_of(request.app.state)
    staff_of(request)
    state = "active" if (await request.form()).get("good") == "yes" else "refused"
    async with services.writing() as session:
        done = await session.execute(
            update(Account).where(Account.id == id, Account.state == "waiting").values(state=state)
        )
    if cast(CursorResult[Any], done).rowcount != 1:
        raise ClientException("This account does not wait for a check any more.")
    await sessions_of(request.app.state).forget(id)
    text = "Your department is checked: you can write now." if state == "active" else "Your department was refused."
    await services.inbox.notify(id, "account", {"text": text, "path": "/"}, id=f"check:{id}")
    return go(request, "/staff")


@post("/staff/broadcast", status_code=200)
async def broadcast(request: Asked) -> Response[Any]:
    """Tell all members: one row, however many there are."""
    services = services_of(request.app.state)
    staff_of(request)
    said = {"text": await field_of(request, "text", 500), "path": "/"}
    await services.inbox.broadcast("all", "broadcast", said, id=f"broadcast:{new_id()}")
    return go(request, "/staff")


@post("/staff/report", status_code=200)
async def report(request: Asked) -> Response[Any]:
    """Have the nightly report made now."""
    staff_of(request)
    await jobs.report.send()
    return go(request, "/staff")


@post("/staff/dead/{topic:str}/{id:str}", status_code=200)
async def replay(request: Asked, topic: str, id: str) -> Response[Any]:
    """Have a task that failed for good tried again."""
    staff_of(request)
    if topic not in jobs.tasks.handlers:
        raise NotFoundException
    try:
        await services_of(request.app.state).ask("POST", f"topics/{topic}/dead/{id}/replay")
    except httpx2.HTTPStatusError:
        raise ClientException("This task is no dead letter any more.") from None
    return go(request, "/staff")


ROUTES: Final = [staff_page, check, broadcast, report, replay]
