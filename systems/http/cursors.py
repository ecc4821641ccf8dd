"""Cursors of lists, in one form for all routes: a page takes `limit` and `after`, and answers with `next`.

A cursor names the last entry of its page, so that entries that come or go meanwhile neither repeat nor hide another
one. Knows no route.
"""

import base64
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, TypeVar

import msgspec
from litestar.params import QueryParameter

from muster_server.systems.http.problems import Problem

R = TypeVar("R")
T = TypeVar("T")
CHARS_MAX: Final = 1_024
ANCHORS: Final = 3
"""Number of entries at the end of a page that its cursor knows: one of them may go before the next page is read."""
REACH: Final = 5_000
"""Number of entries before and behind the former place that are searched for the anchors."""
PLACE_MAX: Final = 1 << 32

After = Annotated[str, QueryParameter(description="The `next` of the previous page", max_length=CHARS_MAX)]


class Anchored(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page of a list that is read by places: how many entries were before it, and the last ones."""

    place: Annotated[int, msgspec.Meta(ge=1, le=PLACE_MAX)]
    anchors: Annotated[list[bytes], msgspec.Meta(min_length=1, max_length=ANCHORS)]


def written(name: str, place: Any) -> str:
    """The cursor behind this place of the list `name`."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode((name, place))).rstrip(b"=").decode()


def read(name: str, after: str, shape: type[T]) -> T | None:
    """The place of a cursor; None: the list's begin. Raises `Problem` unless it is a cursor of the list `name`."""
    if not after:
        return None
    try:
        decoded = base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True)
        written_for, place = msgspec.msgpack.decode(decoded, type=tuple[str, msgspec.Raw])
        if written_for == name:
            return msgspec.msgpack.decode(place, type=shape)
    except (ValueError, msgspec.MsgspecError):
        pass
    raise Problem("bad_request", f"invalid after {after!a:.80} (expected the `next` of a page of this list)")


def page(
    name: str, rows: Sequence[R], key: Callable[[R], str], last: str | None, limit: int
) -> tuple[Sequence[R], str | None]:
    """A page of rows that are sorted by `key`, and its `next`. `last`: the last key of the former page."""
    begin = 0 if last is None else bisect_right(rows, last, key=key)
    found = rows[begin : begin + limit]
    return found, written(name, key(found[-1])) if begin + limit < len(rows) else None


async def page_by_place(
    name: str,
    fetch: Callable[[int, int], Awaitable[Sequence[R]]],
    key: Callable[[R], bytes],
    former: Anchored | None,
    limit: int,
    start: int = 0,
) -> tuple[int, Sequence[R], str | None]:
    """A page of a list that is read by places alone: the place of its first entry, the entries, and its `next`.

    `fetch` has the place to start at and the number of entries. The last entries of the former page are searched around
    their former place. If all of them are gone, the page starts at that place. Without a former page, it starts at
    `start`.
    """
    if former is None:
        begin, rows = start, await fetch(start, limit + 1)
    else:
        begin, rows = await _behind(former, fetch, key, limit)
    found = rows[:limit]
    end = begin + len(found)
    whole = len(rows) <= limit or end > PLACE_MAX
    anchors = [_anchor(key(row)) for row in found[-ANCHORS:]]
    return begin, found, None if whole else written(name, Anchored(end, anchors))


async def _behind(
    former: Anchored, fetch: Callable[[int, int], Awaitable[Sequence[R]]], key: Callable[[R], bytes], limit: int
) -> tuple[int, Sequence[R]]:
    """The entries behind a cursor, one more than `limit`, and the place of the first one."""
    rows = await fetch(former.place - 1, limit + 2)
    if rows and _anchor(key(rows[0])) == former.anchors[-1]:
        return former.place, rows[1:]
    first = max(0, former.place - REACH)
    around = {_anchor(key(row)): at for at, row in enumerate(await fetch(first, 2 * REACH), first)}
    known = (around[anchor] + 1 for anchor in reversed(former.anchors) if anchor in around)
    begin = next(known, former.place)
    return begin, await fetch(begin, limit + 1)


def _anchor(key: bytes) -> bytes:
    return blake2b(key, digest_size=8).digest()
