"""`muster likes erase` and `muster likes export`: what is known of a user goes, or is printed."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target
from muster_server.control.terminal.words import say
from muster_server.systems.likes.cli.commands import client, user_of

if TYPE_CHECKING:
    from muster_server.systems.likes.erasure import Erasure, Exported


async def erase(where: Target, user: str, yes: bool, as_json: bool) -> int:
    """Erase a user, and wait until no trace is left. Raises `UserError`."""
    number = user_of(user)
    if not yes:
        _confirm(number)
    async with client(where) as node:
        with _bar() as progress:
            done = await node.erasures.erase(number, progress)
    with common.verdict_after():
        if as_json:
            common.print_json({"user": str(number), **asdict(done), "job": str(done.job)})
        else:
            print(_summary(number, done))
    return 0


async def export(where: Target, user: str) -> int:
    """Print everything that is known of a user, one JSON object a line."""
    number = user_of(user)
    async with client(where) as node:
        with common.verdict_after():
            async for each in node.erasures.export(number):
                common.print_json(line(each), line=True)
    return 0


def line(each: "Exported") -> dict[str, Any]:
    """One thing of a user as an object of JSON; text that is not UTF-8 is replaced."""
    item = each.item.decode(errors="replace")
    if each.score is not None:
        return {"type": "score", "leaderboard": item, "score": each.score}
    kind, colon, _ = item.partition(":")
    return {"type": "like", "kind": kind if colon else "", "item": item, "at_s": each.at_s}


def _confirm(user: int) -> None:
    """Have a person type the user's number. Raises `UserError`."""
    if not sys.stdin.isatty():
        raise UserError(f"erasing user {user} cannot be undone; to confirm: --yes", USAGE)
    say(f"muster: all likes, reactions and leaderboard entries of user {user} will be erased; this cannot be undone.")
    sys.stderr.write("Type the user's number to confirm: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != str(user):
        raise UserError("the number does not match; nothing was erased", USAGE)


def _summary(user: int, done: "Erasure") -> str:
    kinds = ", ".join(f"{count:,} of {kind or 'no kind'}" for kind, count in sorted(done.likes.items()))
    likes = common.counted(sum(done.likes.values()), "like") + (f" ({kinds})" if kinds else "")
    derived = f", {common.counted(done.derived, 'result')} of BITOP" if done.derived else ""
    return (
        f"erased user {user}: {likes}, {common.counted(done.scores, 'leaderboard score')}{derived}; "
        f"checked {common.counted(done.looked, 'slot')}; the files that are left, "
        f"{common.counted(done.snapshots, 'snapshot')} and {common.counted(done.segments, 'log segment')}, are newer"
    )


@contextlib.contextmanager
def _bar() -> Iterator[Callable[["Erasure"], None]]:
    """Show a bar on stderr, on a terminal; else a line for each phase."""
    if not sys.stderr.isatty():
        phases: list[str] = []

        def tell(erasure: "Erasure") -> None:
            if erasure.phase not in phases[-1:]:
                phases.append(erasure.phase)
                say(f"muster: erasure {erasure.job}: {erasure.phase}")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} slots"),
        TextColumn("{task.fields[likes]:,} likes"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=0, likes=0)

        def move(erasure: "Erasure") -> None:
            likes = sum(erasure.likes.values())
            bar.update(task, description=erasure.phase, total=erasure.of, completed=erasure.looked, likes=likes)

        yield move
