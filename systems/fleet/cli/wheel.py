"""`muster fleet wheel`, `muster fleet runs` and `muster fleet explain RUN`: the schedule, and the course of runs."""

import time
from typing import Final

from rich.table import Table

from muster_server.control.errors import FAILURE
from muster_server.control.terminal.common import counted, out, print_json, verdict_after
from muster_server.control.terminal.words import say, tell
from muster_server.systems.fleet.asking import Asking
from muster_server.systems.fleet.questions import Explain, Explained, Hour, PastRuns, RunPage, WheelShown

NAMES_MAX: Final = 6


async def wheel(asking: Asking, as_json: bool) -> int:
    """Show the last hour and the next hour."""
    shown = await asking.lead(Hour(), WheelShown)
    with verdict_after():
        if as_json:
            print_json(shown)
            return 0
        table = Table("minute", "due", "sent", "missed", "major", "enterprise", "ordinary", box=None, pad_edge=False)
        for slot in shown.slots:
            if not (slot.due or slot.sent or slot.missed):
                continue
            over = slot.minute <= shown.last_minute
            tasks = [_names(slot.tasks.get(each, [])) for each in ("major", "enterprise", "ordinary")]
            at = time.strftime("%H:%M", time.localtime(slot.minute * 60))
            missed = counted(slot.missed, "task") if slot.missed else ""
            table.add_row(at, str(slot.due), str(slot.sent) if over else "", missed, *tasks)
        out().print(table)
        due = sum(slot.due for slot in shown.slots if slot.minute > shown.last_minute)
        sent = sum(slot.sent for slot in shown.slots)
        print(f"{sent} clients asked in the last hour, {due} samples due in the next hour")
        print(f"{shown.picked_per_task:.1f} clients per task, {shown.tasks_per_minute:.2f} tasks per minute")
    return 0


async def runs(asking: Asking, limit: int, after: str, as_json: bool) -> int:
    """A page of the history of runs."""
    page = await asking.lead(PastRuns(limit, after), RunPage)
    with verdict_after():
        if as_json:
            print_json(page)
            return 0
        table = Table(
            "run", "kind", "state", "started", "wanted", "done", "replaced", "missed", box=None, pad_edge=False
        )
        for run in page.runs:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_ms / 1_000))
            counts = (str(each) for each in (run.wanted, run.done, run.replaced, run.missed))
            table.add_row(run.run, run.kind, run.state, at, *counts)
        if page.runs:
            out().print(table)
    if page.next:
        say(f"next page: --after {page.next}")
    return 0


async def explain(asking: Asking, run: str, as_json: bool) -> int:
    """Returns 1 if the repeated draw does not give the same clients."""
    said = await asking.lead(Explain(run), Explained)
    with verdict_after():
        if as_json:
            print_json(said)
        else:
            _print(said)
    return FAILURE if said.replayed is False else 0


def _print(said: Explained) -> None:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(said.started_ms / 1000))
    tell(f"{said.run}: {said.kind} {said.target}, {said.state}, {at}")
    tell(f"where {said.selector or 'everyone'}: {said.wanted} wanted")
    if said.reason:
        tell(f"no client was asked: {said.reason}")
    for number, (draw, asked) in enumerate(zip(said.draws, said.asked, strict=False)):
        what = "replacements" if number else "first draw"
        tell(
            f"{what}: {len(asked)} of {draw.members} clients by index node {draw.index}, seed {draw.seed}, "
            f"round {draw.round} ({draw.of_round} of it), {draw.tired} tired, {draw.excused} excused, "
            f"penalty {draw.punishment:.3f}"
        )
        tell(f"  {_names(asked)}")
    for what, names in (("done", said.done), ("silent and replaced", said.replaced), ("missed", said.missed)):
        tell(f"{what}: {len(names)}" + (f": {_names(names)}" if names and what != "done" else ""))
    verdicts = {
        True: "the stored state gives the same clients",
        False: "THE STORED STATE GIVES OTHER CLIENTS",
    }
    tell(verdicts.get(said.replayed, "the state before the draw was too large to be stored"))  # type: ignore[arg-type]


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
