"""People: who is online, what a member shares and keeps, and follows of people and fields."""

from typing import Any, Final, cast

from litestar import Response, get, post
from litestar.exceptions import ClientException, NotFoundException
from sqlalchemy import CursorResult, delete, select

from .desk import FIELDS, Asked, fragment, go, member_of, page, services_of
from .shares import pages_of
from .tables import Account, Follow, Share

ONLINE_MAX: Final = 1_000
"""Accounts that one page asks presence about."""
FOLLOWS_MAX: Final = 500


@get("/people/online")
async def online(request: Asked) -> Response[str]:
    """Members who have a page open, for the front page."""
    services = services_of(request.app.state)
    member_of(request)
    async with services.reading() as session:
        newest = await session.execute(select(Account.id, Account.name).order_by(Account.id.desc()).limit(ONLINE_MAX))
        names = {row.id: row.name for row in newest}
    there = await services.online(list(names))
    return fragment(request, "_online.html", people=[(id, name) for id, name in names.items() if id in there])


@get("/people")
async def people_page(request: Asked) -> Response[str]:
    """All members, the newest first, and the fields."""
    services, me = services_of(request.app.state), member_of(request)
    async with services.reading() as session:
        found = (await session.scalars(select(Account).order_by(Account.id.desc()).limit(100))).all()
        follows = set((await session.scalars(select(Follow.target).where(Follow.account == me.id))).all())
    return page(request, "people.html", people=found, follows=follows, kept=await _kept(request, me.id))


@get("/people/{id:int}")
async def person_page(request: Asked, id: int) -> Response[str]:
    """A member and what that member shares."""
    services, me = services_of(request.app.state), member_of(request)
    async with services.reading() as session:
        person = await session.get(Account, id)
        if person is None:
            raise NotFoundException
        public = select(Share).where(Share.author == id, Share.state == "public")
        shares = (await session.scalars(public.order_by(Share.public_at.desc()).limit(50))).all()
        follows = await session.get(Follow, (me.id, f"user:{id}")) is not None
    return page(request, "person.html", person=person, shares=shares, follows=follows)


@post("/follows", status_code=200)
async def follow(request: Asked) -> Response[Any]:
    """Follow or leave a person or a field. Following twice is following once."""
    services, me = services_of(request.app.state), member_of(request)
    form = await request.form()
    target, wanted = str(form.get("target", "")), form.get("follows", "yes") == "yes"
    kind, _, name = target.partition(":")
    async with services.writing() as session:
        removed = await session.execute(delete(Follow).where(Follow.account == me.id, Follow.target == target))
        if wanted:
            mine = (await session.scalars(select(Follow.target).where(Follow.account == me.id))).all()
            is_user = kind == "user" and name.isdecimal() and len(name) < 20
            there = await session.get(Account, int(name)) is not None if is_user else kind == "field" and name in FIELDS
            if not there or target == f"user:{me.id}":
                raise NotFoundException
            if len(mine) >= FOLLOWS_MAX:
                raise ClientException(f"You follow {FOLLOWS_MAX} people and fields already; leave one first.")
            session.add(Follow(account=me.id, target=target))
    is_new = wanted and cast(CursorResult[Any], removed).rowcount == 0
    if is_new and kind == "user":
        said = {"text": f"{me.name} follows you", "path": f"/people/{me.id}"}
        await services.inbox.notify(int(name), "news", said, actor=me.name, id=f"follow:{me.id}")
    return go(request, f"/people/{name}" if kind == "user" else "/people")


async def _kept(request: Asked, user: int) -> list[dict[str, Any]]:
    """The shares that a member keeps as favourites, the newest first."""
    pages = pages_of(request.app.state)
    found = [await pages.share(id) for id in (await services_of(request.app.state).likes_of(user, "favourite"))[:20]]
    return [share for share in found if share is not None]


ROUTES: Final = [online, people_page, person_page, follow]
