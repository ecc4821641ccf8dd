"""`muster fleet clients SELECTOR` and `muster fleet fairness SELECTOR`: the state of an index node."""

import sys
import time
from typing import Final

import msgspec
from rich.table import Table

from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal import sparks
from muster_server.control.terminal.common import counted, out, print_json, verdict_after
from muster_server.control.terminal.words import say, tell
from muster_server.systems.fleet.asking import Asking
from muster_server.systems.fleet.cli.fairness_picture import picture
from muster_server.systems.fleet.questions import (
    ClientPage,
    Clients,
    Count,
    Counted,
    Fairness,
    MinuteCounts,
    Spread,
    Stats,
)
from muster_server.systems.fleet.selector import ATTRIBUTES, COUNTED, SelectorError, parse

BAR: Final = 40
MARKS_MAX: Final = 5


async def clients(asking: Asking, selector: str, limit: int, after: str, as_json: bool) -> int:
    """A page of the clients, by name."""
    _check(selector)
    page = await asking.owner(selector, Clients(selector, limit, after), ClientPage)
    with verdict_after():
        if as_json:
            print_json(page)
            return 0
        shown = [name for name in ATTRIBUTES if any(name in each.attributes for each in page.clients)]
        table = Table("client", *shown, "weight", "picked", "in flight", box=None, pad_edge=False)
        for each in page.clients:
            values = [", ".join(each.attributes.get(name, [])) for name in shown]
            table.add_row(each.name, *values, f"{each.weight:.3f}", str(each.picked), str(each.in_flight))
        if page.clients:
            out().print(table)
    say(f"{counted(page.total, 'client')}" + (f", {len(page.clients)} shown" if page.more or after else ""))
    return 0


async def counts(asking: Asking, by: str, selector: str, as_json: bool) -> int:
    """The number of clients for each value of an attribute."""
    if by not in COUNTED:
        raise UserError(f"ATTRIBUTE: unknown attribute {by!r:.80} (expected one of {', '.join(COUNTED)})", USAGE)
    _check(selector)
    found = await asking.owner(selector, Count(by, selector), Counted)
    with verdict_after():
        if as_json:
            print_json(found)
            return 0
        most = max((count for _, count in found.values), default=1)
        for value, count in found.values:
            tell(f"{value:>12} {sparks.bar(count, most, BAR):{BAR}} {count}")
    say(counted(found.clients, "client") + (f"; {found.more} more values" if found.more else ""))
    return 0


async def fairness(asking: Asking, selector: str, as_json: bool, svg: bool = False) -> int:
    """Show how evenly the clients are picked, in words or as a picture."""
    _check(selector)
    spread = await asking.owner(selector, Fairness(selector), Spread)
    with verdict_after():
        if as_json:
            print_json(msgspec.to_builtins(spread, str_keys=True))
            return 0
        if svg:
            sys.stdout.write(picture(spread, selector))
            return 0
        times = sorted(spread.picked)
        print(
            f"{counted(spread.members, 'client')}, round {spread.round}; {spread.owed} of them still wait for their "
            "turn in it"
        )
        if times:
            print(f"picked {times[0]} to {times[-1]} times, through any selector:")
            most = max(spread.picked.values())
            for time in times:
                count = spread.picked[time]
                print(f"{time:>8} {sparks.bar(count, most, BAR):{BAR}} {count}")
        print(f"weights: lightest {spread.lightest:.3f}, mean {spread.mean_weight:.3f}")
        picked, tasks = spread.picked_per_task, spread.tasks_per_minute
        print(
            f"penalty {spread.punishment:.3f}: clients online / ({picked:.1f} clients per task x {tasks:.2f} tasks per "
            f"minute); a task costs {0.001 * spread.punishment:.4f} of a weight, a minute returns 0.001"
        )
    return 0


async def stats(asking: Asking, minutes: int, mark: str, as_json: bool) -> int:
    """Connects and disconnects per minute, of one mark or of all."""
    last = int(time.time() // 60)
    rows = await asking.owner("", Stats(last - minutes + 1, last), list[MinuteCounts])
    if mark:
        rows = [MinuteCounts(row.minute, _only(row.came, mark), _only(row.went, mark)) for row in rows]
    with verdict_after():
        if as_json:
            print_json(rows)
            return 0
        table = Table("minute", "came", "went", "marks", box=None, pad_edge=False)
        for row in rows:
            at = time.strftime("%H:%M", time.localtime(row.minute * 60))
            marks = ", ".join(sorted({*row.came, *row.went})[:MARKS_MAX])
            table.add_row(at, str(sum(row.came.values())), str(sum(row.went.values())), marks)
        if rows:
            out().print(table)
    came, went = (
        sum(sum(by.values()) for by in side) for side in ([row.came for row in rows], [row.went for row in rows])
    )
    say(f"{came} came, {went} went")
    return 0


def _only(counts: dict[str, int], mark: str) -> dict[str, int]:
    return {mark: counts[mark]} if mark in counts else {}


def _check(selector: str) -> None:
    try:
        parse(selector)
    except SelectorError as error:
        raise UserError(str(error), USAGE) from None
