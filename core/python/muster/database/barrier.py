"""Effects once: a consumer's own transaction remembers the message that it was for.

A message comes at least once. Its effects come once where they and this row commit together. Knows no server.
"""

from typing import Any, cast

from sqlalchemy import CursorResult
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..clock import now_ms
from ..errors import Invalid
from .rows import EFFECTS, ID_CHARS_MAX, insert_once, name_of


async def first_time(session: AsyncSession, message: str, *, consumer: str = "") -> bool:
    """Whether this message has had no effects yet; from now on it has, if the session's transaction commits.

    `message`: the header `webhook-id`. `consumer`: names one of several kinds of effects in a database. Where another
    transaction has the same message under way, this waits for its end. False: change nothing, and answer 200.
    Raises `Invalid` and `SQLAlchemyError`.
    """
    return await session.run_sync(lambda sync: first_time_sync(sync, message, consumer=consumer))


def first_time_sync(session: Session, message: str, *, consumer: str = "") -> bool:
    """The same for a `Session`."""
    message, consumer = name_of(message), name_of(consumer)
    for name in (message, consumer):
        if len(name) > ID_CHARS_MAX or not name.isascii():
            raise Invalid(f"{name!r:.80} is not at most {ID_CHARS_MAX} characters of ASCII")
    row = {"consumer": consumer, "message": message, "at_ms": now_ms()}
    dialect = session.get_bind(clause=EFFECTS).dialect.name
    return cast(CursorResult[Any], session.execute(insert_once(dialect, EFFECTS, row))).rowcount == 1
