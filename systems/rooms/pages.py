"""The pages of administration that only rooms have: `/api/v1/rooms`, `/api/v1/rooms/{name}`, `/api/v1/interest`.

Rooms and interest come in pages, each with a cost bounded by `limit`. They are in the node's own order, which is fixed
while the node lives. `search` selects rooms by a text in their names. A page may be short; `next` is the value of `after`
for the next page, or null. Rooms that come or go meanwhile may be missing; rooms that stay are on one page.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from muster_server.systems.rooms.engine import RoomsEngine

PAGE: Final = 100
PAGE_MAX: Final = 1000
NODE_MAX: Final = (1 << 32) - 1
_LIMIT: Final = re.compile(r"[1-9][0-9]{0,3}")
_ROOMS_AFTER: Final = re.compile(r"[0-9]{1,18}")
_INTEREST_AFTER: Final = re.compile(r"(0|[1-9][0-9]{0,9})-([0-9a-f]{16})")

Page = tuple[int, Any]
"""Status and body."""


def answer(engine: RoomsEngine, path: str, query: str) -> Page | None:
    """The answer at a path; None for an unknown path."""
    if path == "/api/v1/rooms":
        asked = parse_qs(query)
        text = asked.get("search", [""])[0]
        return _page(asked, lambda after, limit: _rooms(engine, after, limit, text))
    if path == "/api/v1/interest":
        return _page(parse_qs(query), lambda after, limit: _interest(engine, after, limit))
    if path.startswith("/api/v1/rooms/"):
        name = path.removeprefix("/api/v1/rooms/")
        room = engine.room(name)
        return (404, {"error": f"no room {name!r} here"}) if room is None else (200, room)
    return None


def _page(query: Mapping[str, list[str]], page: Callable[[str, int], dict[str, Any] | None]) -> Page:
    after, limit = query.get("after", [""])[0], query.get("limit", [str(PAGE)])[0]
    if not _LIMIT.fullmatch(limit) or int(limit) > PAGE_MAX:
        return 400, {"error": f"invalid limit (expected a number from 1 to {PAGE_MAX})"}
    found = page(after, int(limit))
    if found is None:
        return 400, {"error": "invalid after (expected the value of next of the previous page)"}
    return 200, found


def _rooms(engine: RoomsEngine, after: str, limit: int, text: str) -> dict[str, Any] | None:
    if after and not _ROOMS_AFTER.fullmatch(after):
        return None
    rooms, following = engine.rooms(int(after or 0), limit, text)
    return {"rooms": rooms, "next": None if following is None else str(following)}


def _interest(engine: RoomsEngine, after: str, limit: int) -> dict[str, Any] | None:
    start = (0, 0)
    if after:
        said = _INTEREST_AFTER.fullmatch(after)
        if said is None or int(said[1]) > NODE_MAX:
            return None
        start = int(said[1]), int(said[2], 16)
    interest, following = engine.interest(start, limit)
    # Ids in hex: they use all 64 bits, but a number in JSON has 53.
    wanted = [[gateway, f"{room:016x}"] for gateway, room in interest]
    return {"interest": wanted, "next": None if following is None else f"{following[0]}-{following[1]:016x}"}
