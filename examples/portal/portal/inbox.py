"""Notices: the bell, the list, marks, and settings by kind. The inbox itself is Muster's."""

from typing import Any, Final

from litestar import Response, get, post
from litestar.exceptions import ClientException

from muster.inbox import Choice

from .desk import Asked, fragment, go, member_of, page, services_of

KINDS: Final = {
    "reply": "Replies",
    "like": "Likes",
    "news": "News from those you follow",
    "letter": "Letters",
    "order": "Orders",
    "broadcast": "News of the portal",
}
MAILS: Final = {"never": "never", "unless_read": "unless I read it in time", "daily": "once a day"}


@get("/inbox/bell")
async def bell(request: Asked) -> Response[str]:
    """The count of unread notices."""
    counts = await services_of(request.app.state).inbox.counts(member_of(request).id)
    return fragment(request, "_bell.html", count=sum(counts.unread.values()))


@get("/inbox")
async def inbox_page(request: Asked, before: str = "") -> Response[str]:
    """A page of notices, the newest first."""
    services, me = services_of(request.app.state), member_of(request)
    found = await services.inbox.page(me.id, before=before or None, limit=20)
    choices = await services.inbox.settings(me.id)
    return page(request, "inbox.html", found=found, kinds=KINDS, mails=MAILS, choices=choices)


@post("/inbox/read", status_code=200)
async def read(request: Asked) -> Response[Any]:
    """Mark everything up to a cursor as read. A member reaches the inbox of that member alone."""
    to = str((await request.form()).get("to", ""))
    await services_of(request.app.state).inbox.read(member_of(request).id, to=to)
    return go(request, "/inbox")


@post("/inbox/settings", status_code=200)
async def settings(request: Asked) -> Response[Any]:
    """Which kinds are kept, and which are mailed."""
    form = await request.form()
    chosen: dict[str, Choice] = {}
    for kind in KINDS:
        mail = str(form.get(f"mail-{kind}", "never"))
        if mail not in MAILS:
            raise ClientException(f"Mail: it is one of {', '.join(MAILS)}.")
        chosen[kind] = Choice(inbox=form.get(f"keep-{kind}") == "yes", mail=mail)  # type: ignore[arg-type] # one of MAILS
    await services_of(request.app.state).inbox.choose(chosen, member_of(request).id)
    return go(request, "/inbox")


ROUTES: Final = [bell, inbox_page, read, settings]
