"""`muster cluster replica add | remove`, `cluster add | remove`: adds or removes a node of a running instance.

Asks the supervisor to begin, then polls until it is done. An interrupt does not stop the work.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from muster_server.control.cluster import requests
from muster_server.control.cluster.requests import Add, Look, Remove, Seated
from muster_server.control.errors import FAILURE, TRY_LATER, UserError
from muster_server.control.terminal import common
from muster_server.control.terminal.words import say
from muster_server.plane.kinds import partitioned

LOOK_S: Final = 0.2
ADD_S: Final = 60.0
"""Limit of a start on a busy machine, in seconds."""
REMOVE_S: Final = 60.0
"""Limit of a node's end, in seconds; longer than the supervisor waits before it kills the node."""


async def add(config_file: Path | None, role: str, partition: int, as_json: bool) -> int:
    """Start one more node and wait until it serves."""
    folder = _folder(config_file)
    (asked,) = await requests.ask(folder, Add(role=role, partition=partition))

    def done(seated: Seated | None) -> bool:
        if seated is None or seated.leaving:
            raise UserError(f"{asked.name} was removed again before it ran", FAILURE)
        return seated.state == "ready"

    if not await _watched(folder, asked, done, ADD_S, "does not run yet"):
        return TRY_LATER
    _say(asked, as_json, f"{asked.name} runs{_of(asked)}: id {asked.node}", "running")
    return 0


async def remove(config_file: Path | None, node: str, role: str | None, partition: int, as_json: bool) -> int:
    """Drain a node and wait until it has ended. `node` is its number or its name; `role`, if given, must match."""
    folder = _folder(config_file)
    found = [each for each in await requests.ask(folder, Look()) if node in {str(each.node), each.name}]
    if not found:
        raise UserError(f"the instance has no node {node}; muster status has their names and numbers")
    if role is not None and (found[0].role, found[0].partition) != (role, partition):
        raise UserError(
            f"{node} is not a replica of partition {partition} of {role}, but {found[0].name}{_of(found[0])}"
        )
    if role is None and found[0].role in partitioned():
        of = f"{found[0].role} {found[0].partition} {node}"
        raise UserError(f"{found[0].name} is a replica; use muster cluster replica remove {of}")
    (asked,) = await requests.ask(folder, Remove(node=found[0].node))
    if not await _watched(folder, asked, lambda seated: seated is None, REMOVE_S, "has not ended yet"):
        return TRY_LATER
    _say(asked, as_json, f"{asked.name} has ended{_of(asked)}: id {asked.node}", "removed")
    return 0


def _folder(config_file: Path | None) -> Path:
    place = common.place(config_file)
    common.running(config_file)
    return place.path


async def _watched(
    folder: Path, asked: Seated, done: Callable[[Seated | None], bool], patience_s: float, late: str
) -> bool:
    """Show the node's state until it is done; False if a signal ended this. Raises `UserError` when it takes too
    long."""
    shown, error = "", ""
    try:
        async with asyncio.timeout(patience_s):
            while True:
                every = {each.node: each for each in await requests.ask(folder, Look())}
                seated = every.get(asked.node)
                if done(seated):
                    return True
                state = "" if seated is None else "drains" if seated.leaving else seated.state
                error = "" if seated is None else seated.error
                if state + error != shown:
                    say(f"{asked.name}: {state}" + (f": {error}" if error else ""))
                shown = state + error
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        why = error or "see its log"
        raise UserError(f"{asked.name} {late} after {patience_s:.0f} s: {why}; muster status", TRY_LATER) from None
    except asyncio.CancelledError:
        say(f"muster: {asked.name} {late}; the work continues, see muster status")
        return False


def _of(seated: Seated) -> str:
    return f", a replica of partition {seated.partition} of {seated.role}" if seated.role in partitioned() else ""


def _say(seated: Seated, as_json: bool, text: str, state: str) -> None:
    if as_json:
        about = {"name": seated.name, "role": seated.role, "node": seated.node, "partition": seated.partition}
        print(msgspec.json.encode({**about, "state": state}).decode())
    else:
        print(text)
