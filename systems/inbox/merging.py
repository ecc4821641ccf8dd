"""Two numbered lists read as one: a user's own entries, and the broadcasts to the user's audiences.

Owns the order of a page and its cursors. Each list keeps its own order, so a page never misses an entry of a list and
never repeats one, even if a clock was set back; between the lists the time decides. It must not know a store.
"""

from collections.abc import Sequence
from typing import Final

from muster_server.systems.inbox.shapes import Cursor, Entry

FIRST: Final = Cursor(0, 0)

Row = tuple[int, Entry | None]
"""An entry with its number in its list; None: it cannot be read, and a page leaves it out."""


def newer(
    own: Sequence[Row], broadcasts: Sequence[Row], after: Cursor, now: Cursor, limit: int
) -> tuple[list[Entry], Cursor, bool]:
    """The first entries of two lists in ascending order; the cursor behind them; and whether more follow.

    The lists begin after the cursor and go at least one beyond `limit`, if there are that many entries up to `now`."""
    mine, theirs = 0, 0
    found: list[Entry | None] = []
    while len(found) < limit and (mine < len(own) or theirs < len(broadcasts)):
        if theirs == len(broadcasts) or (mine < len(own) and _at(own[mine]) <= _at(broadcasts[theirs])):
            found.append(own[mine][1])
            mine += 1
        else:
            found.append(broadcasts[theirs][1])
            theirs += 1
    seq = now.seq if mine == len(own) else own[mine - 1][0] if mine else after.seq
    number = now.number if theirs == len(broadcasts) else broadcasts[theirs - 1][0] if theirs else after.number
    return _good(found), Cursor(seq, number), mine < len(own) or theirs < len(broadcasts)


def older(
    own: Sequence[Row], broadcasts: Sequence[Row], before: Cursor, limit: int
) -> tuple[list[Entry], Cursor, bool]:
    """The same in descending order, from before the cursor on."""
    mine, theirs = 0, 0
    found: list[Entry | None] = []
    while len(found) < limit and (mine < len(own) or theirs < len(broadcasts)):
        if theirs == len(broadcasts) or (mine < len(own) and _at(own[mine]) >= _at(broadcasts[theirs])):
            found.append(own[mine][1])
            mine += 1
        else:
            found.append(broadcasts[theirs][1])
            theirs += 1
    end = Cursor(own[mine - 1][0] if mine else before.seq, broadcasts[theirs - 1][0] if theirs else before.number)
    return _good(found), end, mine < len(own) or theirs < len(broadcasts)


def _at(row: Row) -> int:
    """Its time; that of an unreadable one is unknown, so it comes at once."""
    return 0 if row[1] is None else row[1].at


def _good(found: Sequence[Entry | None]) -> list[Entry]:
    return [entry for entry in found if entry is not None]
