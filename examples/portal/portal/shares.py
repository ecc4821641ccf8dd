"""Shares and replies: write, publish at once or at a time, cancel; pages that the cache keeps, and what is live.

A change marks its pages in the cache around its transaction, and each transaction has one message: the worker tells
the rest of the world if and only if it commits.
"""

import contextlib
from datetime import UTC, datetime
from typing import Any, Final, cast

import httpx2
from litestar import Response, get, post
from litestar.datastructures import State
from litestar.exceptions import ClientException, NotFoundException
from markupsafe import Markup
from sqlalchemy import CursorResult, select, update
from sqlalchemy.ext.asyncio import AsyncSession

import muster

from . import jobs, orders
from .accounts.sessions import Member
from .desk import (
    FIELDS,
    Asked,
    field_of,
    fragment,
    go,
    is_fragment,
    member_of,
    page,
    rendered,
    services_of,
    visitor_of,
    writer_of,
)
from .services import Services
from .tables import Account, Reply, Share, new_id, now

FRONT_MAX: Final = 30
REPLIES_MAX: Final = 200
AHEAD_S_MAX: Final = 366 * 86_400
FEE_MAX: Final = 1_000
FRESH_S: Final = 600
"""Each change drops its pages, so their time bounds only what a program beside the portal changed."""


class Pages:
    """Parts of pages that are alike for all readers, over the cache."""

    def __init__(self, services: Services) -> None:
        @services.cache.cached("front:{field}", fresh_s=FRESH_S, stale_s=FRESH_S)
        async def front(field: str) -> str:
            wanted = select(Share, Account).join(Account, Account.id == Share.author).where(Share.state == "public")
            if field:
                wanted = wanted.where(Share.field == field)
            async with services.loading() as session:
                found = await session.execute(wanted.order_by(Share.public_at.desc()).limit(FRONT_MAX))
                return "".join(card(share, author) for share, author in found)

        @services.cache.cached("share:{id}", fresh_s=FRESH_S, stale_s=FRESH_S)
        async def share(id: int) -> dict[str, Any] | None:
            async with services.loading() as session:
                found = await with_author(session, id)
                if found is None or found[0].state != "public":
                    return None
                return shown(*found) | {"replies": await replies_html(session, id)}

        @services.cache.cached("top:{kind}", fresh_s=5, stale_s=60)
        async def top(kind: str) -> list[int]:
            return await services.top(kind)

        @services.cache.cached("likes:{kind}:{id}", fresh_s=FRESH_S, stale_s=FRESH_S)
        async def count(kind: str, id: int) -> int:
            return int((await services.liked(kind, id, 0))["count"])

        @services.cache.cached("liked:{kind}:{id}:{user}", fresh_s=FRESH_S)
        async def likes(kind: str, id: int, user: int) -> bool:
            return bool((await services.liked(kind, id, user))["likes"])

        self.front, self.share, self.top, self._count, self._likes = front, share, top, count, likes

    async def liked(self, kind: str, id: int, user: int) -> dict[str, Any]:
        """Return whether a user likes an item, and its number of likes; user 0 is a visitor. Open pages hear of changes."""
        try:
            likes = await self._likes(kind, id, user) if user else False
            return {"likes": likes, "count": await self._count(kind, id)}
        except httpx2.HTTPError:  # a share can be read without its likes
            return {"likes": False, "count": ""}

    def of_like(self, kind: str, id: int, user: int) -> list[str]:
        """The keys of what a like changes."""
        return [self._count.key(kind, id), self._likes.key(kind, id, user), self.top.key(kind)]

    def of_share(self, share: Share) -> list[str]:
        """The keys of the pages that show a share."""
        return [self.share.key(share.id), self.front.key(""), self.front.key(share.field)]


def pages_of(state: State) -> Pages:
    """The cached pages of this process."""
    return cast(Pages, state.pages)


def card(share: Share, author: Account) -> str:
    """A share in a list."""
    return rendered("_card.html", share=share, author=author)


def shown(share: Share, author: Account) -> dict[str, Any]:
    """A share on its own page."""
    html = rendered("_share.html", share=share, author=author)
    return {
        "id": share.id,
        "title": share.title,
        "author": author.id,
        "fee": share.fee,
        "text": share.text,
        "html": html,
    }


async def replies_html(session: AsyncSession, share: int) -> str:
    """The latest replies, in their order."""
    found = await session.execute(
        select(Reply, Account)
        .join(Account, Account.id == Reply.author)
        .where(Reply.share == share)
        .order_by(Reply.id.desc())
        .limit(REPLIES_MAX)
    )
    return "".join(rendered("_reply.html", reply=reply, author=author) for reply, author in reversed(found.all()))


async def with_author(session: AsyncSession, id: int) -> tuple[Share, Account] | None:
    """A share in any state."""
    row = (
        await session.execute(select(Share, Account).join(Account, Account.id == Share.author).where(Share.id == id))
    ).first()
    return None if row is None else (row[0], row[1])


@get("/")
async def front_page(request: Asked, field: str = "") -> Response[str]:
    """The newest shares, of one field or of all, and what is liked most."""
    if field and field not in FIELDS:
        raise NotFoundException
    pages = pages_of(request.app.state)
    html = Markup(await pages.front(field))
    return page(request, "front.html", field=field, cards=html, top=await _top(request))


async def _top(request: Asked) -> list[dict[str, Any]]:
    pages = pages_of(request.app.state)
    try:
        ids = await pages.top("share")
    except httpx2.HTTPError:  # the same holds for the front page
        ids = []
    found = [await pages.share(id) for id in ids]
    return [share for share in found if share is not None]


@get("/shares/{id:int}")
async def share_page(request: Asked, id: int) -> Response[str]:
    """A share, its likes and its replies. Until it is published only its author sees it."""
    services, me = services_of(request.app.state), visitor_of(request).member
    pages = pages_of(request.app.state)
    found = await pages.share.strict(id)  # a reader may know of an edit that the other server has answered just now
    waiting = None
    if found is None and me is not None:
        async with services.writing() as session:  # the primary: the author has just written it
            row = await with_author(session, id)
        if row is not None and row[0].author == me.id:
            waiting, found = row[0], shown(*row) | {"replies": ""}
    if found is None:
        raise NotFoundException
    context: dict[str, Any] = {"share": found, "waiting": waiting, "order": await _order_of(services, found, me)}
    for name in "html", "replies":
        context[name] = Markup(found[name])
    for kind in ("share", "favourite") if me else ("share",):
        context[kind + "_liked"] = await pages.liked(kind, id, me.id if me else 0)
    return page(request, "share.html", **context)


@get("/shares/{id:int}/order")
async def order_part(request: Asked, id: int) -> Response[str]:
    """The text of a share that takes a fee, or the order of it."""
    services, me = services_of(request.app.state), visitor_of(request).member
    found = await pages_of(request.app.state).share(id)
    if found is None or not found["fee"]:
        raise NotFoundException
    return fragment(request, "_order.html", share=found, order=await _order_of(services, found, me))


async def _order_of(services: Services, share: dict[str, Any], me: Member | None) -> str:
    """The state of a reader's order; `paid` for the author too."""
    if me is None or not share["fee"]:
        return ""
    return "paid" if me.id == share["author"] else await orders.state_of(services, share["id"], me.id)


@get("/shares/{id:int}/live")
async def live_part(request: Asked, id: int) -> Response[str]:
    """The replies again, for a page that missed some."""
    found = await pages_of(request.app.state).share(id)
    if found is None:
        raise NotFoundException
    return Response(found["replies"], media_type="text/html; charset=utf-8")


@get("/write")
async def write_page(request: Asked) -> Response[str]:
    """The form of a share."""
    writer_of(request)
    return page(request, "write.html")


@post("/shares", status_code=200)
async def write(request: Asked) -> Response[Any]:
    """Publish a share now, or when its time comes."""
    services, me = services_of(request.app.state), writer_of(request)
    field = await field_of(request, "field", 20)
    if field not in FIELDS:
        raise ClientException(f"Field: it is one of {', '.join(FIELDS)}.")
    wait_s, fee = max(0.0, await _wait_s(request)), await _fee(request)
    id = new_id()
    share = Share(
        id=id,
        author=me.id,
        field=field,
        title=await field_of(request, "title", 120, 3),
        text=await field_of(request, "text", 20_000, 3),
        state="waiting" if wait_s else "public",
        fee=fee,
        public_at=now() + wait_s,
    )
    keys = pages_of(request.app.state).of_share(share)
    async with services.cache.changing(*keys) as change, services.writing() as session:
        told = services.transactions.transaction(session, "publish", {"share": id}, in_s=wait_s)
        async with told as message:
            share.message = message.id
            session.add(share)
            change.check()
    return go(request, f"/shares/{id}")


@post("/shares/{id:int}/cancel", status_code=200)
async def cancel(request: Asked, id: int) -> Response[Any]:
    """Take back a share that waits for its time."""
    services, me = services_of(request.app.state), member_of(request)
    async with services.writing() as session:
        done = await session.execute(
            update(Share)
            .where(Share.id == id, Share.author == me.id, Share.state == "waiting")
            .values(state="cancelled")
        )
        share = await session.get(Share, id)
        message = share.message if share is not None else ""
    if cast(CursorResult[Any], done).rowcount != 1:
        raise ClientException("This share does not wait for its time any more.")
    # The row decides; the message would find it cancelled. Withdrawn, it does not wait for nothing.
    with contextlib.suppress(muster.MusterError):
        await services.messages.cancel("publish", message)
    return go(request, f"/shares/{id}")


@post("/shares/{id:int}/edit", status_code=200)
async def edit(request: Asked, id: int) -> Response[Any]:
    """Change the text. No server shows the former one once this is answered."""
    services, me, pages = services_of(request.app.state), writer_of(request), pages_of(request.app.state)
    text = await field_of(request, "text", 20_000, 3)
    async with services.reading() as session:
        share = await session.get(Share, id)
    if share is None or share.author != me.id:
        raise NotFoundException
    # Lists do not show the text, so they stay.
    async with services.cache.changing(pages.share.key(id)) as change, services.writing() as session:
        await session.execute(update(Share).where(Share.id == id).values(text=text))
        change.check()
        await session.commit()
    return go(request, f"/shares/{id}")


@post("/shares/{id:int}/withdraw", status_code=200)
async def withdraw(request: Asked, id: int) -> Response[Any]:
    """Take back a public share; the worker returns the fees of those who have paid."""
    services, me, pages = services_of(request.app.state), member_of(request), pages_of(request.app.state)
    async with services.reading() as session:
        share = await session.get(Share, id)
    if share is None or share.author != me.id:
        raise NotFoundException
    public = Share.id == id, Share.state == "public"
    async with (
        services.cache.changing(*pages.of_share(share)) as change,
        services.writing() as session,
        services.transactions.transaction(session, "withdrawn", {"share": id}),
    ):
        await session.execute(update(Share).where(*public).values(state="withdrawn"))
        change.check()
    return go(request, "/")


@post("/shares/{id:int}/replies", status_code=200)
async def reply(request: Asked, id: int) -> Response[Any]:
    """Reply; the worker tells all readers and the author of the share."""
    services, me, pages = services_of(request.app.state), writer_of(request), pages_of(request.app.state)
    text = await field_of(request, "text", 4_000, label="Reply")
    if await pages.share(id) is None:
        raise NotFoundException
    made = Reply(id=new_id(), share=id, author=me.id, text=text, at=now())
    html = rendered("_reply.html", reply=made, author=me)
    async with services.cache.changing(pages.share.key(id)) as change, services.writing() as session:
        told = services.transactions.transaction(session, "replied", {"reply": made.id})
        async with told:
            session.add(made)
            change.check()
    if is_fragment(request):
        return Response(html, media_type="text/html; charset=utf-8")
    return go(request, f"/shares/{id}")


@post("/likes/{kind:str}/{id:int}", status_code=200)
async def like(request: Asked, kind: str, id: int) -> Response[Any]:
    """Like or keep a share, or take that back. Readers see the count through the room of the item."""
    services, me = services_of(request.app.state), member_of(request)
    found = await pages_of(request.app.state).share(id)
    if kind not in {"share", "favourite"} or found is None:
        raise NotFoundException
    wanted = (await request.form()).get("likes", "yes") == "yes"
    async with services.cache.changing(*pages_of(request.app.state).of_like(kind, id, me.id)):
        said = await services.like(kind, id, me.id, likes=wanted)
    if wanted and not said["before"] and found["author"] != me.id:
        # The id has the task sent once, however often a member likes, takes it back and likes again.
        await jobs.liked.send(id=f"{kind}-{id}-{me.id}", share=id, user=me.id, name=me.name, kind=kind)
    if is_fragment(request):
        return fragment(request, "_like.html", kind=kind, id=id, liked=said)
    return go(request, f"/shares/{id}")


async def _fee(request: Asked) -> int:
    """Credits that it takes to read a share; nothing: 0."""
    fee = await field_of(request, "fee", 4, 0) or "0"
    if not (fee.isascii() and fee.isdecimal()) or int(fee) > FEE_MAX:
        raise ClientException(f"Fee: it is a number of credits from 0 to {FEE_MAX}.")
    return int(fee)


async def _wait_s(request: Asked) -> float:
    """How long a share waits: `wait` seconds, or until `at`."""
    at = await field_of(request, "at", 40, 0)
    if not at:
        return 0.0
    try:
        wait_s = float(at) if at.isdecimal() else datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() - now()
    except ValueError:
        raise ClientException("Publish at: it is a time such as 2027-01-01T08:00, or seconds from now.") from None
    if wait_s > AHEAD_S_MAX:
        raise ClientException("Publish at: it is more than a year ahead.")
    return wait_s


async def publish(services: Services, pages: Pages, id: int) -> tuple[Share, Account] | None:
    """Make a share public if it waits; the worker calls it at its time, perhaps twice. None: it is cancelled."""
    async with services.reading() as session:
        share = await session.get(Share, id)
    if share is None:
        return None
    async with services.cache.changing(*pages.of_share(share)) as change, services.writing() as session:
        await session.execute(
            update(Share).where(Share.id == id, Share.state == "waiting").values(state="public", public_at=now())
        )
        row = await with_author(session, id)
        change.check()
    return row if row is not None and row[0].state == "public" else None


ROUTES: Final = [front_page, share_page, order_part, live_part, write_page, write, cancel, edit, withdraw, reply, like]
