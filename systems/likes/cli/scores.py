"""The work of `muster likes leaderboard`. Data on stdout; a node's refusal is one line and an exit code."""

import math
from collections.abc import Sequence
from typing import cast, get_args

from rich.table import Table

from muster_server.control.errors import FAILURE, USAGE, UserError
from muster_server.control.host.shown import one_line
from muster_server.control.terminal import common
from muster_server.control.terminal.common import typed
from muster_server.control.terminal.found import Target
from muster_server.systems.likes.cli.commands import client
from muster_server.systems.likes.reach import MEMBERS, WINDOWS, Only


async def put(where: Target, name: str, member: str, score: float, only: str, as_json: bool) -> int:
    """Set a member's score."""
    if only not in get_args(Only):
        raise UserError(f"--only: {only!r} is not one of new, existing, greater, less", USAGE)
    number = _number(score)
    async with client(where) as node:
        changed = await node.leaderboards.put(typed(name), [(typed(member), number)], cast(Only, only))
    with common.verdict_after():
        if as_json:
            common.print_json({"leaderboard": name, "member": member, "score": score, "changed": bool(changed)})
        else:
            print(f"{one_line(name)}: {f'{one_line(member)} has {score:g}' if changed else 'nothing changed'}")
    return 0


async def add(where: Target, name: str, member: str, by: float, as_json: bool) -> int:
    """Raise a member's score."""
    number = _number(by)
    async with client(where) as node:
        score = await node.leaderboards.add(typed(name), typed(member), number)
    with common.verdict_after():
        if as_json:
            common.print_json({"leaderboard": name, "member": member, "score": score})
        else:
            print(f"{one_line(name)}: {one_line(member)} has {score:g}")
    return 0


async def show(where: Target, name: str, member: str, window: str, lowest: bool, as_json: bool) -> int:
    """Show a member's score and rank."""
    _check(window)
    async with client(where) as node:
        found = await node.leaderboards.standing(typed(name), typed(member), window, lowest=lowest)
    if found is None:
        raise UserError(f"{one_line(name)}: no member {one_line(member)}", FAILURE)
    with common.verdict_after():
        if as_json:
            said = {"leaderboard": name, "member": member, "score": found.score, "rank": found.rank, "of": found.of}
            common.print_json(said)
        else:
            print(f"{one_line(name)}: {one_line(member)} has {found.score:g}, rank {found.rank} of {found.of}")
    return 0


async def top(where: Target, name: str, top: int, window: str, lowest: bool, as_json: bool) -> int:
    """Show the top."""
    _check(window)
    async with client(where) as node:
        page = await node.leaderboards.top(typed(name), 0, top, window, lowest=lowest)
    ranked = [(member.decode(errors="replace"), score) for member, score in page]
    with common.verdict_after():
        if as_json:
            members = [{"rank": rank, "member": member, "score": score} for rank, (member, score) in enumerate(ranked)]
            common.print_json({"leaderboard": name, "window": window, "members": members})
        elif ranked:
            table = Table("rank", "member", "score", box=None, pad_edge=False)
            for rank, (member, score) in enumerate(ranked):
                table.add_row(str(rank), one_line(member), f"{score:.3f}" if window else f"{score:g}")
            common.out().print(table)
    return 0


async def remove(where: Target, name: str, members: Sequence[str], as_json: bool) -> int:
    """Remove members."""
    if len(members) > MEMBERS:
        raise UserError(f"{len(members):,} members (limit {MEMBERS}); remove the others by another command", USAGE)
    async with client(where) as node:
        removed = await node.leaderboards.remove(typed(name), [typed(member) for member in members])
    with common.verdict_after():
        if as_json:
            common.print_json({"leaderboard": name, "removed": removed})
        else:
            print(f"{one_line(name)}: removed {common.counted(removed, 'member')}")
    return 0


async def ties(where: Target, name: str, by: str, as_json: bool) -> int:
    """Set what decides between equal scores."""
    if by not in ("time", "name"):
        raise UserError(f"{by!r} is not one of time, name", USAGE)
    async with client(where) as node:
        await node.leaderboards.put_ties(typed(name), by_time=by == "time")
    with common.verdict_after():
        if as_json:
            common.print_json({"leaderboard": name, "ties": by})
        else:
            print(f"{one_line(name)}: the {by} decides between equal scores")
    return 0


async def delete(where: Target, name: str, as_json: bool) -> int:
    """Remove all members and settings."""
    async with client(where) as node:
        deleted = await node.leaderboards.delete(typed(name))
    with common.verdict_after():
        if as_json:
            common.print_json({"leaderboard": name, "deleted": deleted})
        else:
            print(f"{one_line(name)}: {'deleted' if deleted else 'it had no member'}")
    return 0


def _check(window: str) -> None:
    if window and window not in WINDOWS:
        raise UserError(f"--window: {window!r} is not one of {', '.join(WINDOWS)}", USAGE)


def _number(score: float) -> float:
    if math.isnan(score):
        raise UserError("nan is not a valid score", USAGE)
    return score
