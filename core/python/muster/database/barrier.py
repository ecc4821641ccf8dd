"""Effects once: a consumer's own transaction records the message that it handled.

A message is delivered at least once. Its effects happen once if they and this row commit together. Knows no server.
"""

from typing import Any, cast

from sqlalchemy import CursorResult
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ..clock import now_ms
from ..errors import Invalid
from .rows import EFFECTS, ID_CHARS_MAX, insert_once, name_of


async def first_time(session: AsyncSession, message: str, *, consumer: str = "") -> bool:
    """Return whether this message has had no effect yet, and record it if the session's transaction commits.

    `message`: the header `webhook-id`. `consumer`: distinguishes several kinds of effects in a database. If another
    transaction handles the same message at this time, this waits for its end. False: change nothing, and answer 200.
    Raises `Invalid` and `SQLAlchemyError`.
    """
    return await session.run_sync(lambda sync: first_time_sync(sync, message, consumer=consumer))


def first_time_sync(session: Session, message: str, *, consumer: str = "") -> bool:
    """The same for a `Session`."""
    message, consumer = name_of(message), name_of(consumer)
    for name in (message, consumer):
        if len(name) > ID_CHARS_MAX or not name.isascii():
            raise Invalid(f"invalid id {name!r:.80} (expected at most {ID_CHARS_MAX} ASCII characters)")
    row = {"consumer": consumer, "message": message, "at_ms": now_ms()}
    dialect = session.get_bind(clause=EFFECTS).dialect.name
    return cast(CursorResult[Any], session.execute(insert_once(dialect, EFFECTS, row))).rowcount == 1
