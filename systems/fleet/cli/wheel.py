"""`muster fleet wheel` and `muster fleet explain RUN`: what runs when, and what became of a run."""

import time
from typing import Final

from rich.table import Table

from muster_server.control.errors import FAILURE
from muster_server.control.terminal.common import counted, out, print_json, verdict_after
from muster_server.control.terminal.words import tell
from muster_server.systems.fleet.asking import Asking
from muster_server.systems.fleet.questions import Explain, Explained, Hour, WheelShown

NAMES_MAX: Final = 6


async def wheel(asking: Asking, as_json: bool) -> int:
    """The hour before and the hour to come."""
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
        print(f"{sent} clients asked in the hour before, {due} samples due in the hour to come")
        print(f"{shown.picked_per_task:.1f} clients a task, {shown.tasks_per_minute:.2f} tasks a minute")
    return 0


async def explain(asking: Asking, run: str, as_json: bool) -> int:
    """1 if the same draw does not give the same clients."""
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
        tell(f"nobody was asked: {said.reason}")
    for number, (draw, asked) in enumerate(zip(said.draws, said.asked, strict=False)):
        what = "replacements" if number else "first draw"
        tell(
            f"{what}: {len(asked)} of {draw.members} clients by index node {draw.index}, seed {draw.seed}, "
            f"round {draw.round} ({draw.of_round} of it), {draw.tired} tired, {draw.excused} excused, "
            f"punishment {draw.punishment:.3f}"
        )
        tell(f"  {_names(asked)}")
    for what, names in (("done", said.done), ("silent and replaced", said.replaced), ("missed", said.missed)):
        tell(f"{what}: {len(names)}" + (f": {_names(names)}" if names and what != "done" else ""))
    verdicts = {
        True: "the same clients come out of the stored state",
        False: "OTHER CLIENTS COME OUT OF THE STORED STATE",
    }
    tell(verdicts.get(said.replayed, "the state before the draw was too large to be kept"))  # type: ignore[arg-type]


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
