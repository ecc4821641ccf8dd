"""The tasks of workers: `python -m muster.work portal.jobs:tasks`. Each task may run twice, so each effect has an id.

Owns the connections of a worker, and the mail sink. Web servers import it to send tasks.
"""

import asyncio
import re
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from muster.tasks import Tasks

from . import settings as stored
from .tables import Account, Follow, Letter, Reply, Share

if TYPE_CHECKING:
    from .services import Services
    from .shares import Pages

SETTINGS: Final = stored.load()
tasks = Tasks(SETTINGS.http_url, key=SETTINGS.key)
FAN_OUT: Final = 1_000
"""Users of one call."""


class Worker:
    """The connections of this worker, opened by its first task."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._made: tuple[Services, Pages] | None = None

    async def __call__(self) -> "tuple[Services, Pages]":
        from .services import opened
        from .shares import Pages

        async with self._lock:
            if self._made is None:
                services = await self._stack.enter_async_context(opened(SETTINGS))
                self._made = services, Pages(services)
            return self._made


worker = Worker()


@tasks.handler("mail", lease_s=30)
def mail(to: str, subject: str, text: str) -> None:
    """Send a mail: here, write it into the sink. A real portal speaks SMTP here, with the task's id as Message-ID."""
    _sink(to, f"To: {to}\nSubject: {subject}\n\n{text}\n")


@tasks.handler("text", lease_s=30)
def text(to: str, text: str) -> None:
    """Send a text to a phone: here, into the sink. A real portal asks a gateway here, with the task's id as its key."""
    _sink(to, f"To: {to}\n\n{text}\n")


def _sink(to: str, said: str) -> None:
    folder = SETTINGS.mail_folder
    folder.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9@.+_-]", "_", to.lower())
    part = folder / f".{name}-{time.time_ns()}"
    part.write_text(said)
    part.rename(folder / f"{name}-{time.time_ns()}.txt")


async def write_to(contact: str, subject: str, said: str, *, id: str) -> None:
    """Write to an account's contact: a mail, or a text. Both are tasks."""
    if contact.startswith("+"):
        await text.send(id=id, to=contact, text=said)
    else:
        await mail.send(id=id, to=contact, subject=subject, text=said)


@tasks.handler("publish")
async def publish(share: int) -> None:
    """A share's time has come: show it, in open front pages too, and tell those who follow."""
    from .shares import card
    from .shares import publish as made_public

    services, pages = await worker()
    row = await made_public(services, pages, share)
    if row is None:
        return
    found, author = row
    await services.rooms.publish(
        "front", json={"id": f"card-{share}", "field": found.field, "html": card(found, author)}
    )
    await followed.send(id=f"followed-{share}", share=share, after=0)


@tasks.handler("followed")
async def followed(share: int, after: int) -> None:
    """Tell a thousand followers, and send the next task for the others."""
    services, _ = await worker()
    async with services.reading() as session:
        found = await session.get(Share, share)
        if found is None:
            return
        author = await session.get(Account, found.author)
        wanted = select(Follow.account).where(Follow.target.in_([f"user:{found.author}", f"field:{found.field}"]))
        wanted = wanted.where(Follow.account > after, Follow.account != found.author).distinct()
        users = list((await session.scalars(wanted.order_by(Follow.account).limit(FAN_OUT))).all())
    if not users:
        return
    assert author is not None
    said = {"text": f"{author.name} shares “{found.title}”", "path": f"/shares/{share}"}
    await services.inbox.notify(users, "news", said, actor=author.name, id=f"share:{share}")
    if len(users) == FAN_OUT:
        await followed.send(id=f"followed-{share}-{users[-1]}", share=share, after=users[-1])


@tasks.handler("replied")
async def replied(reply: int) -> None:
    """Show a reply in all open pages of its share, and tell the author of the share, and those who replied before."""
    from .desk import rendered

    services, _ = await worker()
    async with services.reading() as session:
        found = await session.get(Reply, reply)
        assert found is not None, "the message is sent only if the transaction with this row has committed"
        author, share = await session.get(Account, found.author), await session.get(Share, found.share)
        assert author is not None
        assert share is not None
        earlier = select(Reply.author).where(Reply.share == share.id, Reply.id < reply).distinct().limit(FAN_OUT - 1)
        users = {share.author, *(await session.scalars(earlier)).all()} - {found.author}
    html = rendered("_reply.html", reply=found, author=author)
    await services.rooms.publish(f"share:{share.id}", json={"id": f"reply-{reply}", "html": html})
    if users:
        said = {"text": f"{author.name} replies to “{share.title}”", "path": f"/shares/{share.id}#reply-{reply}"}
        group = f"share:{share.id}"
        await services.inbox.notify(sorted(users), "reply", said, actor=author.name, group=group, id=f"reply:{reply}")


@tasks.handler("liked")
async def liked(share: int, user: int, name: str, kind: str) -> None:
    """Tell the author of a share that it is liked, or kept as a favourite."""
    services, _ = await worker()
    async with services.reading() as session:
        found = await session.get(Share, share)
    if found is None:
        return
    verb = "likes" if kind == "share" else "keeps"
    said = {"text": f"{name} {verb} “{found.title}”", "path": f"/shares/{share}"}
    await services.inbox.notify(
        found.author, "like", said, actor=name, group=f"{kind}:{share}", id=f"{kind}:{share}:{user}"
    )


@tasks.handler("wrote")
async def wrote(letter: int) -> None:
    """Tell the receiver of a letter, in open pages at once."""
    services, _ = await worker()
    async with services.reading() as session:
        found = await session.get(Letter, letter)
        assert found is not None, "the message is sent only if the transaction with this row has committed"
        sender = await session.get(Account, found.sender)
    assert sender is not None
    if found.read_at is None:
        said = {"text": f"A letter from {sender.name}", "path": f"/letters/{sender.id}"}
        group = f"letters:{sender.id}"
        await services.inbox.notify(
            found.receiver, "letter", said, actor=sender.name, group=group, id=f"letter:{letter}"
        )
    await services.tell(found.receiver, {"letter": str(sender.id)})


@tasks.handler("unread")
async def unread(user: str, entries: list[dict[str, Any]]) -> None:
    """Mail what a member has not read; the inbox sends this, unless it was read before."""
    services, _ = await worker()
    async with services.reading() as session:
        account = await session.get(Account, int(user))
    if account is None:
        return
    lines = [str(entry["data"]["text"]) for entry in entries if isinstance(entry.get("data"), dict)]
    await write_to(account.contact, "News at the portal", "\n".join(lines), id=f"unread-{user}-{entries[0]['id']}")


@tasks.handler("ordered", lease_s=10)
async def ordered(order: int) -> None:
    """Have the ledger take the fee of an order, and tell both sides."""
    from .orders import pay

    services, _ = await worker()
    found, share, state = await pay(services, order)
    outcome = {"paid": "is paid: you can read it", "refused": "was refused: you have too few credits"}
    said = {
        "text": f"Your order of “{share.title}” {outcome.get(state, 'was taken back')}",
        "path": f"/shares/{share.id}",
    }
    await services.inbox.notify(found.buyer, "order", said, id=f"order:{order}:{state}")
    if state == "paid":
        said = {"text": f"You got {found.fee} credits for “{share.title}”", "path": "/orders"}
        await services.inbox.notify(share.author, "order", said, group=f"sold:{share.id}", id=f"sold:{order}")


@tasks.handler("returned", lease_s=10)
async def returned(order: int) -> None:
    """The compensation: return the fee of an order that its buyer took back."""
    from .orders import undo

    services, _ = await worker()
    await undo(services, order)


@tasks.handler("withdrawn", lease_s=10)
async def withdrawn(share: int) -> None:
    """The compensation for a share that its author took back: return the fees of a thousand, and go on with the others."""
    from .orders import undo_all

    services, _ = await worker()
    async with services.reading() as session:
        found = await session.get(Share, share)
    assert found is not None
    while orders := await undo_all(services, share, FAN_OUT):
        for each in orders:
            said = {"text": f"“{found.title}” was withdrawn: you have your {each.fee} credits back", "path": "/orders"}
            await services.inbox.notify(each.buyer, "order", said, id=f"order:{each.id}:returned")


@tasks.handler("report")
async def report() -> None:
    """Each night: send orders again that were left over, and tell the staff what the day brought."""
    from .report import left_over, lines, staff

    services, _ = await worker()
    orders = await left_over(services)
    day = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
    for order in orders:
        await ordered.send(id=f"again-{order}-{day[:10]}", order=order)
    text = "\n".join([f"The portal on {day}", *await lines(services, len(orders))])
    for account in await staff(services):
        async with services.reading() as session:
            found = await session.get(Account, account)
        assert found is not None
        await services.inbox.notify(account, "report", {"text": text, "path": "/staff"}, id=f"report:{day}")
        await write_to(found.contact, "The portal's night", text, id=f"report-{account}-{day}")


report.every("nightly", "0 3 * * *")
