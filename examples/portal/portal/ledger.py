"""The ledger: credits of accounts, in a database of its own. An order is paid at most once, and returned at most once.

Each call is one transaction whose key is the order, so that tasks may call it again. It must not know shares.
"""

from typing import Any, Final, cast

from sqlalchemy import CursorResult, Result, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from .tables import Order, Payment, Wallet

GIFT: Final = 20
"""Credits of a new account."""


class Accounts:
    """The wallets and payments."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def credits(self, account: int) -> int:
        """The credits of an account."""
        async with AsyncSession(self._engine) as session:
            wallet = await session.get(Wallet, account)
        return GIFT if wallet is None else wallet.credits

    async def total(self) -> int:
        """Credits gained and lost by all accounts together; no order changes it from 0."""
        async with AsyncSession(self._engine) as session:
            total = await session.scalar(select(func.sum(Wallet.credits - GIFT)))
        return int(total or 0)

    async def payments(self, orders: list[int]) -> dict[int, str]:
        """The states of payments, by order; those without one are left out."""
        async with AsyncSession(self._engine) as session:
            found = await session.execute(select(Payment.order, Payment.state).where(Payment.order.in_(orders)))
            return {row.order: row.state for row in found}

    async def take(self, order: Order, seller: int) -> str:
        """Move the fee from the buyer to the seller unless this was done, refused or returned before. Returns the
        payment's state."""
        for account in order.buyer, seller:
            await self._open(account)
        made = Payment(order=order.id, buyer=order.buyer, seller=seller, fee=order.fee, state="taken")
        try:
            async with AsyncSession(self._engine) as session, session.begin():
                session.add(made)
                await session.flush()  # the key comes first: a second task waits here, and fails
                paid = Wallet.account == order.buyer, Wallet.credits >= order.fee
                done = await session.execute(update(Wallet).where(*paid).values(credits=Wallet.credits - order.fee))
                if not _changed(done):
                    made.state = "refused"
                else:
                    await _add(session, seller, order.fee)
                return made.state
        except IntegrityError:
            return (await self.payments([order.id]))[order.id]

    async def give_back(self, order: Order) -> None:
        """Return the fee if it was taken. If it was not, it cannot be taken any more."""
        async with AsyncSession(self._engine) as session, session.begin():
            # The first statement writes: SQLite lets no reader become a writer once another one has written.
            taken = Payment.order == order.id, Payment.state == "taken"
            is_back = _changed(await session.execute(update(Payment).where(*taken).values(state="returned")))
            found = await session.get(Payment, order.id)
            if found is None:
                session.add(Payment(order=order.id, buyer=order.buyer, seller=0, fee=order.fee, state="returned"))
                return  # if `take` came between, the key fails here, and the task runs again
            if is_back:
                await _add(session, found.seller, -found.fee)
                await _add(session, found.buyer, found.fee)

    async def _open(self, account: int) -> None:
        async with AsyncSession(self._engine) as session:
            if await session.get(Wallet, account) is not None:
                return
        try:
            async with AsyncSession(self._engine) as session, session.begin():
                session.add(Wallet(account=account, credits=GIFT))
        except IntegrityError:
            pass  # another task has opened it


def _changed(done: Result[Any]) -> bool:
    """Return whether a statement found its row. MariaDB has no UPDATE … RETURNING."""
    return cast(CursorResult[Any], done).rowcount == 1


async def _add(session: AsyncSession, account: int, credits: int) -> None:
    await session.execute(update(Wallet).where(Wallet.account == account).values(credits=Wallet.credits + credits))
