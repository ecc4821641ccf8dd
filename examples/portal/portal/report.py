"""The nightly report: what the last day brought, and orders that a death left over, which are sent again."""

from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute

from .services import Services
from .tables import Account, Letter, Order, Reply, Share, now

DAY_S: Final = 86_400.0
LEFT_OVER_S: Final = 3_600.0
LEFT_OVER_MAX: Final = 1_000
COUNTED: Final[dict[str, InstrumentedAttribute[Any]]] = {
    "new accounts": Account.joined_at,
    "shares": Share.public_at,
    "replies": Reply.at,
    "letters": Letter.at,
    "orders": Order.at,
}


async def lines(services: Services, left_over: int) -> list[str]:
    """The lines of the report."""
    since = now() - DAY_S
    found = []
    async with services.reading() as session:
        for name, at in COUNTED.items():
            count = await session.scalar(select(func.count()).where(at > since, at <= now()))
            found.append(f"{name}: {count}")
    found.append(f"orders sent again: {left_over}")
    found.append(f"credits gained or lost by all accounts together: {await services.ledger.total()}")
    return found


async def staff(services: Services) -> list[int]:
    """The accounts that get the report."""
    async with services.reading() as session:
        return list((await session.scalars(select(Account.id).where(Account.staff).limit(100))).all())


async def left_over(services: Services) -> list[int]:
    """Orders that have waited for an hour: their task is a dead letter, or was lost with the instance's folder."""
    old = select(Order.id).where(Order.state == "waiting", Order.at < now() - LEFT_OVER_S)
    async with services.reading() as session:
        return list((await session.scalars(old.limit(LEFT_OVER_MAX))).all())
