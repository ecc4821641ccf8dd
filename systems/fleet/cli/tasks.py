"""`muster fleet task add | ls | show | pause | resume | rm`, and `muster fleet refresh`."""

import re
from typing import Final

import msgspec
from rich.table import Table

from muster_server.control.errors import FAILURE, USAGE, UserError
from muster_server.control.terminal.common import counted, out, print_json, verdict_after
from muster_server.control.terminal.words import say, tell
from muster_server.systems.fleet.asking import Asking
from muster_server.systems.fleet.questions import DropTask, PutTask, Refresh, Refreshed, TaskRow, Tasks

UNITS: Final = {"m": 1, "h": 60, "d": 1_440}


def minutes(text: str) -> int:
    """Parse `5m`, `2h`, `1d` to minutes. Raises `UserError`."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    if match is None:
        raise UserError(f"--every: invalid time {text!r} (expected for example 5m, 2h, 1d)", USAGE)
    return int(match[1]) * UNITS[match[2]]


async def put(asking: Asking, row: TaskRow, *, new: bool, as_json: bool) -> int:
    """Write a task; it runs from the next minute on."""
    put = await asking.lead(PutTask(row, new), TaskRow)
    if as_json:
        print_json(put)
    else:
        tell(f"{put.name} {_when(put)}")
    return 0


async def ls(asking: Asking, as_json: bool) -> int:
    """All tasks."""
    rows = await asking.lead(Tasks(), list[TaskRow])
    with verdict_after():
        if as_json:
            print_json(rows)
        elif rows:
            table = Table("task", "state", "when", "class", "kind", "target", "where", box=None, pad_edge=False)
            for row in rows:
                state = "refused" if row.refused else "paused" if row.paused else "runs"
                table.add_row(row.name, state, _when(row), row.customer, row.kind, row.target, row.selector)
            out().print(table)
            for row in rows:
                if row.refused:
                    say(f"muster: task {row.name} cannot be scheduled: {row.refused}")
    return 0


async def show(asking: Asking, name: str, as_json: bool) -> int:
    """One task."""
    row = await _task(asking, name)
    with verdict_after():
        if as_json:
            print_json(row)
        else:
            table = Table("what", "value", box=None, pad_edge=False)
            for what, value in msgspec.to_builtins(row).items():
                table.add_row(what, "" if value is None else str(value))
            out().print(table)
    return 0


async def pause(asking: Asking, name: str, *, paused: bool) -> int:
    """Pause a task, or let it run again from the next minute on."""
    row = await _task(asking, name)
    await asking.lead(PutTask(msgspec.structs.replace(row, paused=paused), False), TaskRow)
    print(f"{name} {'is paused' if paused else 'runs'}")
    return 0


async def rm(asking: Asking, name: str) -> int:
    """Remove it."""
    if not await asking.lead(DropTask(name), bool):
        raise UserError(f"there is no task {name}; muster fleet task ls lists all")
    print(f"{name} is removed")
    return 0


async def refresh(asking: Asking, as_json: bool) -> int:
    """Read the table of tasks again."""
    read = await asking.lead(Refresh(), Refreshed)
    if as_json:
        print_json(read)
    else:
        print(f"{counted(read.tasks, 'task')}, {len(read.refused)} refused")
        for name, why in read.refused.items():
            say(f"muster: {name}: {why}")
    return FAILURE if read.refused else 0


async def _task(asking: Asking, name: str) -> TaskRow:
    rows = await asking.lead(Tasks(), list[TaskRow])
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        raise UserError(f"there is no task {name}; muster fleet task ls lists all")
    return row


def _when(row: TaskRow) -> str:
    if row.every_minutes is None and row.per_hour is None:
        return "never"
    if row.every_minutes is not None:
        return f"every {row.every_minutes} min, {row.pick} clients"
    return f"{row.per_hour} samples per hour"
