"""`muster rooms ls | show`: what the gateways know of rooms."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.table import Table

from control import sdk
from control.commands import common
from control.errors import UserError
from control.instance import Process, Record


def ls(config_file: Path | None, offset: int, limit: int, as_json: bool) -> int:
    """Print a page of rooms."""
    _, answer = common.get(_of(common.running(config_file), "gateway"), f"/api/v1/rooms?offset={offset}&limit={limit}")
    rooms: list[dict[str, Any]] = answer["rooms"]
    if as_json:
        common.print_json(rooms)
    elif rooms:
        columns = list(rooms[0])
        table = Table(*columns, box=None, pad_edge=False)
        for room in rooms:
            table.add_row(*(str(room.get(column, "")) for column in columns))
        common.out().print(table)
    return 0


def show(config_file: Path | None, name: str, as_json: bool) -> int:
    """Print what each role says of one room."""
    sdk.check_name(name)
    record = common.running(config_file)
    answers: dict[str, Any] = {}
    for process in record.processes:
        status, answer = common.get(process, f"/api/v1/rooms/{quote(name, safe='')}")
        if status == 200:
            answers[process.role] = answer
    if not answers:
        raise UserError(f"no room {name!r} here; muster rooms ls shows those that have members or recent messages")
    if as_json:
        common.print_json({"room": name, **answers})
        return 0
    table = Table("role", "what", "value", box=None, pad_edge=False)
    for role, answer in answers.items():
        for what, value in answer.items():
            table.add_row(role, what, str(value))
    common.out().print(table)
    return 0


def _of(record: Record, role: str) -> Process:
    return next(process for process in record.processes if process.role == role)
