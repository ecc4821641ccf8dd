"""Orders: a member pays to read a share. Two databases take part, and no transaction spans them.

    web server: an order that waits, and the message `ordered`, in one transaction of the portal
    worker: the ledger takes the fee (one transaction there, by the order's id), then the order is paid

Where the second step finds that the order was cancelled meanwhile, or the share withdrawn, the compensation returns the
fee. Each step may run twice and each process may die between two of them; `report.py` finds orders that are left over.
"""

from typing import Any, Final, cast

from litestar import Response, get, post
from litestar.exceptions import ClientException, NotFoundException
from sqlalchemy import CursorResult, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from .desk import Asked, go, member_of, page, services_of
from .services import Services
from .tables import Order, Share, new_id

SHOWN_MAX: Final = 100


@get("/orders")
async def orders_page(request: Asked) -> Response[str]:
    """The credits and the orders of a member."""
    services, me = services_of(request.app.state), member_of(request)
    mine = select(Order, Share.title).join(Share, Share.id == Order.share).where(Order.buyer == me.id)
    async with services.reading() as session:
        found = [(row[0], row[1]) for row in await session.execute(mine.order_by(Order.id.desc()).limit(SHOWN_MAX))]
    return page(request, "orders.html", orders=found, credits=await services.ledger.credits(me.id))


@post("/shares/{id:int}/order", status_code=200)
async def order(request: Asked, id: int) -> Response[Any]:
    """Order the right to read a share. A second click finds the first one's order."""
    services, me = services_of(request.app.state), member_of(request)
    async with services.reading() as session:
        share = await session.get(Share, id)
    if share is None or share.state != "public":
        raise NotFoundException
    if share.author == me.id or not share.fee:
        raise ClientException("You can read this share already.")
    made = Order(id=new_id(), share=id, buyer=me.id, fee=share.fee, state="waiting", open=f"{id}:{me.id}")
    try:
        async with (
            services.writing() as session,
            services.transactions.transaction(session, "ordered", {"order": made.id}),
        ):
            session.add(made)
    except IntegrityError:
        pass  # there is an order that waits or is paid
    return go(request, f"/shares/{id}")


@post("/orders/{id:int}/cancel", status_code=200)
async def cancel(request: Asked, id: int) -> Response[Any]:
    """Take back an order that waits. Whatever the ledger has done by now is undone."""
    services, me = services_of(request.app.state), member_of(request)
    async with (
        services.writing() as session,
        services.transactions.transaction(session, "returned", {"order": id}),
    ):
        if not await _moved(session, id, "cancelled", Order.buyer == me.id, Order.state == "waiting"):
            raise ClientException("This order does not wait any more.")
    return go(request, "/orders")


async def state_of(services: Services, share: int, buyer: int) -> str:
    """The state of a member's newest order of a share; empty: there is none."""
    mine = select(Order.state).where(Order.share == share, Order.buyer == buyer).order_by(Order.id.desc()).limit(1)
    async with services.writing() as session:  # the primary: the member may have ordered just now
        return (await session.scalars(mine)).first() or ""


async def pay(services: Services, id: int) -> tuple[Order, Share, str]:
    """Have the ledger take the fee, and the order follow it. Returns the order's state after that."""
    async with services.writing() as session:
        order = await session.get(Order, id)
        assert order is not None, "the message is sent only if the transaction with this row has committed"
        share = await session.get(Share, order.share)
        assert share is not None
    if order.state == "waiting":
        taken = await services.ledger.take(order, share.author)
        state = {"taken": "paid", "refused": "refused", "returned": "cancelled"}[taken]
        async with services.writing() as session:
            await session.execute(select(Share.id).where(Share.id == share.id).with_for_update())
            withdrawn = select(Share.id).where(Share.id == share.id, Share.state != "public").exists()
            await _moved(session, id, "returned", Order.state == "waiting", withdrawn)
            await _moved(session, id, state, Order.state == "waiting")
    async with services.writing() as session:
        found = await session.get(Order, id)
        assert found is not None
    if found.state in {"cancelled", "returned"}:
        await services.ledger.give_back(order)
    return found, share, found.state


async def undo(services: Services, id: int) -> None:
    """Return the fee of an order that was cancelled, or whose share was withdrawn."""
    async with services.writing() as session:
        order = await session.get(Order, id)
    if order is not None and order.state in {"cancelled", "returned"}:
        await services.ledger.give_back(order)


async def undo_all(services: Services, share: int, most: int) -> list[Order]:
    """Return the fees of paid orders of a withdrawn share, `most` of them. Returns these orders."""
    paid = select(Order).where(Order.share == share, Order.state == "paid").order_by(Order.id).limit(most)
    async with services.writing() as session:
        found = list((await session.scalars(paid)).all())
    for each in found:
        await services.ledger.give_back(each)  # first: an order that says `returned` has its fee back
        async with services.writing() as session:
            await _moved(session, each.id, "returned", Order.state == "paid")
    return found


async def _moved(session: AsyncSession, id: int, state: str, *conditions: Any) -> bool:
    """Give an order its next state if the conditions hold. Returns whether they did."""
    values: dict[str, Any] = {"state": state} if state == "paid" else {"state": state, "open": None}
    done = await session.execute(update(Order).where(Order.id == id, *conditions).values(values))
    return cast(CursorResult[Any], done).rowcount == 1


ROUTES: Final = [orders_page, order, cancel]
