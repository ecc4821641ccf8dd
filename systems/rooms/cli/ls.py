"""`muster rooms ls | show`: the nodes' knowledge of rooms, merged.

A node that does not answer is named on stderr and makes the exit code 75; the others' answers are shown.
"""

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from rich.table import Table

from muster_server.control.cluster import sdk
from muster_server.control.cluster.instance import Process, Record
from muster_server.control.errors import UserError
from muster_server.control.terminal import common, tables
from muster_server.control.terminal.found import Target, once
from muster_server.plane.trust import PROBES
from muster_server.systems.rooms.rates import Entry, Rates

PAGE: Final = 1_000
"""Limit of rooms in one answer of a gateway."""
APART_S: Final = 1.0
DOORS: Final = frozenset({"gateway", "edge"})
"""Roles whose nodes have members."""

WORDS: Final[Mapping[str, str]] = {
    "name": "room",
    "members": "members",
    "per_s": "messages/s",
    "held": "messages kept",
    "held_bytes": "bytes kept",
    "flow": "flow",
    "owner": "owner",
    "gateways": "gateways",
}
"""Columns for people; the other fields of an entry need knowledge of the servers."""
COUNTS: Final = frozenset({"members", "per_s", "held", "held_bytes", "joining", "next_offset", "streams"})
LEAST: Final = ("in_force", "streams", "stream", "next_offset", "joining", "gateways", "bytes kept", "flow", "owner")
"""Columns of the table that a narrow terminal drops, the first of them first."""


def ls(where: Target, offset: int, limit: int, as_json: bool, verbose: bool = False, rate: bool = False) -> int:
    """Print a page of the rooms of all gateways and edges, by name. `verbose`: also the servers' own figures, and rooms of
    probes. `rate`: also messages per second, from two lists a second apart."""
    record, asking = once(where), common.Asking()
    rooms = _page(record, asking, offset, limit)
    if rate:
        rates = Rates()
        rates.add(rooms, time.monotonic())
        time.sleep(APART_S)
        rooms = rates.add(_page(record, asking, offset, limit), time.monotonic())
    code = asking.code()
    with common.verdict_after():
        if as_json:
            common.print_json(rooms)
        elif shown := [room for room in rooms if verbose or not room["name"].startswith(f"{PROBES}:")]:
            tables.show(common.out(), _table(shown, verbose), LEAST)
    return code


def _page(record: Record, asking: common.Asking, offset: int, limit: int) -> list[Entry]:
    names = {process.node: process.name for process in record.processes}
    first: dict[str, list[Entry]] = {}
    gateways = [process for process in record.processes if process.role in DOORS]
    # All at once, with small answers: the time-out of silent nodes passes here, and only once.
    answering = asking.all(gateways, "/api/v1/rooms?limit=1")
    for gateway in (gateway for gateway, answer in zip(gateways, answering, strict=True) if answer is not None):
        for room in _told(asking, gateway, names):
            first.setdefault(room["name"], []).append(room)
            if len(first) >= 2 * (offset + limit):
                first = _first(first, offset + limit)
    return [merged(entries) for entries in _first(first, offset + limit).values()][offset:]


def _table(rooms: Sequence[Entry], verbose: bool) -> Table:
    words = [key for key in WORDS if key in rooms[0]]
    more = [key for key in rooms[0] if verbose and key not in WORDS]
    table = Table(box=None, pad_edge=False)
    for key in (*words, *more):
        table.add_column(WORDS.get(key, key), justify="right" if key in COUNTS else "left")
    for room in rooms:
        table.add_row(*(_cell(room.get(key, "")) for key in (*words, *more)))
    return table


def _told(asking: common.Asking, gateway: Process, names: Mapping[int, str]) -> Iterator[Entry]:
    """A gateway's rooms in its own order, fetched as they are needed."""
    after: str | None = ""
    while after is not None:
        answer = asking.get(gateway, f"/api/v1/rooms?after={after}&limit={PAGE}")
        if answer is None:
            return
        for room in answer["rooms"]:
            owner = None if room["stream"] is None else names.get(room["stream"][0])
            yield {**room, "owner": owner, "gateways": [gateway.name]}
        after = answer["next"]


def _first(rooms: Mapping[str, list[Entry]], count: int) -> dict[str, list[Entry]]:
    """Return this many of the rooms, the first by name. A room that is left out here can never be among the first
    later."""
    return {name: rooms[name] for name in heapq.nsmallest(count, rooms)}


def merged(entries: Sequence[Entry]) -> Entry:
    """Merge several gateways' answers about one room: the sums of their counts, and the newest stream."""
    newest = max(entries, key=lambda entry: [*(entry["stream"] or [0, 0, 0])[1:], entry["next_offset"]])
    sums = {key: sum(entry[key] for entry in entries) for key in ("members", "joining", "held", "held_bytes")}
    gateways = [name for entry in entries for name in entry["gateways"]]
    return {**newest, **sums, "in_force": all(entry["in_force"] for entry in entries), "gateways": gateways}


def show(where: Target, name: str, as_json: bool) -> int:
    """Print each node's answer about one room."""
    sdk.check_name(name)
    record, asking = once(where), common.Asking()
    asked = asking.all(record.processes, f"/api/v1/rooms/{quote(name, safe='')}")
    told = zip(record.processes, asked, strict=True)
    answers = {process.name: answer for process, answer in told if answer is not None}
    code = asking.code()
    if not answers:
        raise UserError(f"no room {name!r} here; muster rooms ls shows those that have members or recent messages")
    with common.verdict_after():
        if as_json:
            common.print_json({"room": name, **answers})
            return code
        table = Table("node", "what", "value", box=None, pad_edge=False)
        for node, answer in answers.items():
            for what, value in answer.items():
                table.add_row(node, what, _cell(value))
        common.out().print(table)
    return code


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
