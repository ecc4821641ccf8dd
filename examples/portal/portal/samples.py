"""Sample people and their first shares."""

from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from muster.inbox import AsyncInbox

from .accounts import passwords
from .settings import Settings
from .tables import Account, Share, new_id, now

PASSWORD: Final = "correct horse battery"
PEOPLE: Final = (
    ("ann@example.org", "Ann", False),
    ("bo@example.org", "Bo", False),
    ("staff@example.org", "Staff", True),
)
SHARES: Final = (
    ("seeds", "Corn that stands the drought", "We tried nine kinds over two dry summers. Three of them held."),
    ("energy", "Solar panels over a field of lettuce", "Half the light, and the lettuce grows all the same."),
    ("research", "Who pays for a soil map?", "A list of programmes that are open until the spring."),
)


async def fill(settings: Settings) -> list[tuple[str, str]]:
    """Make them unless they are there. Returns their addresses and passwords."""
    engine = create_async_engine(settings.database_url)
    kept = await passwords.hashed(PASSWORD)
    made: list[int] = []
    async with AsyncSession(engine) as session, session.begin():
        if (await session.scalars(select(Account.id).limit(1))).first() is None:
            for contact, name, staff in PEOPLE:
                made.append(new_id())
                session.add(
                    Account(
                        id=made[-1],
                        contact=contact,
                        name=name,
                        kind="person",
                        state="active",
                        staff=staff,
                        password=kept,
                    )
                )
            await session.flush()
            for field, title, text in SHARES:
                session.add(
                    Share(
                        id=new_id(),
                        author=made[0],
                        field=field,
                        title=title,
                        text=text,
                        state="public",
                        public_at=now(),
                    )
                )
    await engine.dispose()
    async with AsyncInbox(settings.http_url, key=settings.key) as inbox:
        for user in made:
            await inbox.follow("all", user)
    return [(contact, PASSWORD) for contact, _, _ in PEOPLE]
