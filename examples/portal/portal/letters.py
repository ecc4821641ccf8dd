"""Private messages between two members: a conversation, and marks of what was read.

Only its two accounts can open a conversation: its key contains the reader's own id.
"""

from typing import Any, Final

from litestar import Response, get, post
from litestar.exceptions import NotFoundException
from sqlalchemy import case, func, select, update

from . import jobs
from .desk import Asked, field_of, fragment, go, is_fragment, member_of, page, services_of, writer_of
from .services import Services
from .tables import Account, Letter, new_id, now

SHOWN_MAX: Final = 100


def pair_of(one: int, other: int) -> str:
    """The key of a conversation."""
    return f"{min(one, other)}:{max(one, other)}"


async def _letters(services: Services, me: int, other: int) -> list[Letter]:
    """The latest letters of a conversation, in their order."""
    latest = select(Letter).where(Letter.pair == pair_of(me, other)).order_by(Letter.id.desc()).limit(SHOWN_MAX)
    async with services.reading() as session:
        return list(reversed((await session.scalars(latest)).all()))


@get("/letters")
async def letters_page(request: Asked) -> Response[str]:
    """The conversations of a member, with what is unread."""
    services, me = services_of(request.app.state), member_of(request)
    unread = func.sum(case(((Letter.receiver == me.id) & Letter.read_at.is_(None), 1), else_=0))
    mine = select(Letter.pair, func.max(Letter.id), unread).where((Letter.sender == me.id) | (Letter.receiver == me.id))
    async with services.reading() as session:
        found = (
            await session.execute(mine.group_by(Letter.pair).order_by(func.max(Letter.id).desc()).limit(100))
        ).all()
        others = [next(id for id in map(int, pair.split(":")) if id != me.id) for pair, _, _ in found]
        named = await session.execute(select(Account.id, Account.name).where(Account.id.in_(others)))
        names = {row.id: row.name for row in named}
    talks = [(other, names[other], row[2]) for other, row in zip(others, found, strict=True) if other in names]
    return page(request, "letters.html", talks=talks)


@get("/letters/{id:int}")
async def talk_page(request: Asked, id: int) -> Response[str]:
    """A conversation. To open it is to read it: the other side sees that at once."""
    services, me = services_of(request.app.state), member_of(request)
    async with services.reading() as session:
        other = await session.get(Account, id)
    if other is None or id == me.id:
        raise NotFoundException
    await _read(services, me.id, id)
    return page(request, "talk.html", other=other, letters=await _letters(services, me.id, id))


@get("/letters/{id:int}/list")
async def talk_part(request: Asked, id: int) -> Response[str]:
    """The letters again, after a hint; they are read."""
    services, me = services_of(request.app.state), member_of(request)
    await _read(services, me.id, id)
    return fragment(request, "_letters.html", letters=await _letters(services, me.id, id))


@post("/letters/{id:int}", status_code=200)
async def write(request: Asked, id: int) -> Response[Any]:
    """Write a letter; the worker tells the receiver if and only if it is stored."""
    services, me = services_of(request.app.state), writer_of(request)
    text = await field_of(request, "text", 4_000, label="Letter")
    async with services.reading() as session:
        if id == me.id or await session.get(Account, id) is None:
            raise NotFoundException
    made = Letter(id=new_id(), pair=pair_of(me.id, id), sender=me.id, receiver=id, text=text, at=now())
    async with services.writing() as session:
        told = services.transactions.transaction(session, jobs.wrote.topic, {"letter": made.id})
        async with told:
            session.add(made)
    if is_fragment(request):
        return fragment(request, "_letters.html", letters=await _letters(services, me.id, id))
    return go(request, f"/letters/{id}")


async def _read(services: Services, me: int, other: int) -> None:
    """Mark what the other side has written as read, and its notice too, so that no mail is sent for it."""
    unread = (Letter.pair == pair_of(me, other), Letter.receiver == me, Letter.read_at.is_(None))
    async with services.reading() as session:
        last = (await session.scalars(select(Letter.id).where(*unread).order_by(Letter.id.desc()).limit(1))).first()
    if last is None:
        return
    async with services.writing() as session:
        await session.execute(update(Letter).where(*unread).values(read_at=now()))
    found = await services.inbox.page(me, kind="letter", limit=100)
    mine = [entry.id for entry in found.entries if entry.group == f"letters:{other}" and not entry.read]
    if mine:
        await services.inbox.read(me, entries=mine)
    await services.tell(other, {"letter": str(me)})


ROUTES: Final = [letters_page, talk_page, talk_part, write]
