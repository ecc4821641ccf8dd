"""The subcommands of likes. Data on stdout; a node's refusal is one line and an exit code."""

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from muster_server.control.cluster.instance import Record
from muster_server.control.cluster.specs import absolute
from muster_server.control.config.options import Config
from muster_server.control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.host.shown import one_line
from muster_server.control.terminal import common
from muster_server.control.terminal.common import typed
from muster_server.control.terminal.found import Target, found
from muster_server.plane.ownership.errors import Away, StoreError
from muster_server.systems.likes.options import LikesOptions
from muster_server.systems.likes.reach import FEED, MISSING, USER_MAX, WINDOWS, Reach, account

if TYPE_CHECKING:  # imported only where it is used: it takes 0.2 s
    from muster_server.systems.likes.cli.importing import Moving
    from muster_server.systems.likes.client import Likes

NONE_RUNS: Final = "no node of likes runs here; start one: muster up --with likes"


def reach(record: Record, config: Config) -> Reach:
    """The addresses and credentials of the nodes of likes. Raises `UserError`."""
    doors = [each.bind for each in record.of("likes") if each.bind]
    if not doors:
        raise UserError(NONE_RUNS, UNAVAILABLE)
    options: LikesOptions = config.section("likes")
    try:
        user, password = account(absolute(options.users_file)) or (None, None)
    except OSError as error:
        raise UserError(f"likes.users_file: {error}") from None
    return Reach(doors, user, password, absolute(options.tls_cert_file))


@contextlib.asynccontextmanager
async def client(where: Target) -> AsyncIterator["Likes"]:
    """A client of a node. Raises `UserError`, also for a node's refusal while the block lasts."""
    if find_spec("redis") is None:
        raise UserError(MISSING, UNAVAILABLE)
    from muster_server.systems.likes.client import Likes

    async with found(where) as nodes:
        reached = reach(await nodes.record(), where.config())
    with refused_in_one_line():
        async with Likes(reached) as likes:
            yield likes


@contextlib.contextmanager
def refused_in_one_line() -> Iterator[None]:
    """Turn what a node refuses into one line with its exit code. Raises `UserError`."""
    try:
        yield
    except StoreError as error:
        code = UNAVAILABLE if isinstance(error, Away) else TRY_LATER if error.later else FAILURE
        raise UserError(f"likes: {error}", code) from None


def user_of(text: str) -> int:
    """Parse a user. Raises `UserError`."""
    if not (text.isascii() and text.isdigit() and int(text) <= USER_MAX):
        raise UserError(f"invalid user {text!r} (expected a number from 0 to 2^64-1)", USAGE)
    return int(text)


async def toggle(where: Target, item: str, user: str, likes: bool, as_json: bool) -> int:
    """Add or remove a like."""
    number = user_of(user)
    async with client(where) as node:
        was = await node.put(typed(item), number, likes)
        (count,) = await node.counts([typed(item)])
    if as_json:
        common.print_json({"item": item, "user": str(number), "likes": likes, "before": was, "count": count})
    else:
        outcomes = {
            (True, False): "likes it",
            (True, True): "had liked it already",
            (False, True): "does not like it any more",
            (False, False): "had not liked it",
        }
        print(f"{one_line(item)}: {number} {outcomes[likes, was]}; {common.counted(count, 'like')}")
    return 0


async def show(where: Target, item: str, as_json: bool) -> int:
    """Show the state of one item."""
    async with client(where) as node:
        shown = await node.show(typed(item))
    with common.verdict_after():
        if as_json:
            ranks = [{"field": each.field, "rank": each.place, "of": each.of} for each in shown.ranks]
            newest = [str(user) for user in shown.newest]
            common.print_json(
                {"item": item, "count": shown.count, "newest": newest, "ranks": ranks, "windows": shown.trends}
            )
        else:
            console = common.out()
            console.print(f"{item}: {common.counted(shown.count, 'like')}")
            if shown.newest:
                console.print(f"newest: {', '.join(map(str, shown.newest))}")
            for each in shown.ranks:
                console.print(f"rank {each.place} of {each.of} in {each.field or 'all items'}")
            console.print(", ".join(f"{name} {worth:.3f}" for name, worth in shown.trends.items()))
    return 0


async def feed(where: Target, items: Sequence[str], viewer: str | None, newest: int, as_json: bool) -> int:
    """Show a page of a feed."""
    number = None if viewer is None else user_of(viewer)
    if len(items) > FEED:
        raise UserError(f"{len(items):,} items (limit {FEED:,}); ask for the others with another command", USAGE)
    async with client(where) as node:
        page = await node.feed([typed(item) for item in items], number, newest)
    with common.verdict_after():
        if as_json:
            entries = [
                {"item": item, "count": each.count, "likes": each.likes, "newest": list(map(str, each.newest))}
                for item, each in zip(items, page, strict=True)
            ]
            common.print_json({"viewer": None if number is None else str(number), "items": entries})
        else:
            viewed = [] if number is None else [f"{number} likes it"]
            table = Table("item", "likes", *viewed, "newest", box=None, pad_edge=False)
            for item, each in zip(items, page, strict=True):
                liked = [] if each.likes is None else ["yes" if each.likes else "no"]
                table.add_row(item, f"{each.count:,}", *liked, ", ".join(map(str, each.newest)))
            common.out().print(table)
    return 0


async def both(where: Target, items: Sequence[str], user: str | None, as_json: bool) -> int:
    """Show the users who like all items, or whether one does."""
    if len(items) < 2:
        raise UserError("give two items or more; see muster likes both --help", USAGE)
    keys = [typed(item) for item in items]
    if user is not None:
        number = user_of(user)
        async with client(where) as node:
            likes = all([await node.likes(key, number) for key in keys])
        with common.verdict_after():
            if as_json:
                common.print_json({"items": items, "user": str(number), "likes": likes})
            else:
                print("yes" if likes else "no")
        return 0 if likes else FAILURE
    async with client(where) as node:
        users = await node.both(keys)
    with common.verdict_after():
        if as_json:
            common.print_json({"items": items, "users": [str(each) for each in users]})
        else:
            print("\n".join(map(str, users)), end="\n" if users else "")
    return 0


async def of(where: Target, user: str, limit: int, times: bool, as_json: bool) -> int:
    """Show the items that a user likes, with `times` also when."""
    number = user_of(user)
    async with client(where) as node:
        liked = await node.items(number, 0, limit)
    items = [each.item.decode(errors="surrogateescape") for each in liked]
    with common.verdict_after():
        if as_json:
            common.print_json({"user": str(number), "items": items, "at": [each.at_s for each in liked]})
        else:
            shown = list(map(one_line, items)) if sys.stdout.isatty() else items
            lines = (
                [f"{_second(each.at_s)}  {item}" for each, item in zip(liked, shown, strict=True)] if times else shown
            )
            print("\n".join(lines), end="\n" if lines else "")
    return 0


def _second(at_s: int | None) -> str:
    return "-" * 20 if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def ranking(where: Target, field: str, top: int, window: str, as_json: bool) -> int:
    """Show the top of a ranking."""
    if window and window not in WINDOWS:
        raise UserError(f"--window: {window!r} is not one of {', '.join(WINDOWS)}", USAGE)
    async with client(where) as node:
        page = [(item.decode(errors="replace"), score) for item, score in await node.top(field, 0, top, window)]
    with common.verdict_after():
        if as_json:
            ranked = [{"rank": place, "item": item, "score": score} for place, (item, score) in enumerate(page)]
            common.print_json({"field": field, "window": window, "top": ranked})
        elif page:
            table = Table("rank", "item", "score", box=None, pad_edge=False)
            for place, (item, score) in enumerate(page):
                table.add_row(str(place), item, f"{score:g}" if not window else f"{score:.3f}")
            common.out().print(table)
    return 0


async def bring(where: Target, url: str, pattern: str, file: Path, as_json: bool) -> int:
    """Move the bitmaps of a Redis."""
    async with client(where) as node:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        from muster.redis.endings import tell_endings
        from muster_server.systems.likes.cli.importing import Done, Moving

        try:
            source, done = Redis.from_url(url), Done(file)
        except ValueError as error:
            raise UserError(f"{error}; use redis://HOST:PORT/DB", USAGE) from None
        except OSError as error:
            raise UserError(f"--done {file}: {error.strerror}") from None
        tell_endings(source)
        moving = Moving(source, node, done)
        try:
            with _bar(moving) as progress:
                await moving.run(pattern, progress)
        except RedisError as error:
            raise UserError(f"the source Redis: {error}; run the same command again to continue", UNAVAILABLE) from None
        finally:
            done.close()
            await source.aclose()
    with common.verdict_after():
        if as_json:
            names = ("keys", "before", "likes", "new")
            common.print_json({name: getattr(moving, name) for name in names})
        else:
            print(
                f"{common.counted(moving.keys, 'key')} moved with {common.counted(moving.likes, 'like')}, "
                f"{moving.new:,} new; {moving.before:,} moved before"
            )
    return 0


@contextlib.contextmanager
def _bar(moving: "Moving") -> Iterator[Callable[[], None]]:
    """Show a bar on stderr, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} keys"),
        BarColumn(),
        TextColumn("{task.fields[likes]:,} likes"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=0, likes=0)
        yield lambda: bar.update(task, total=moving.of, completed=moving.keys + moving.before, likes=moving.likes)
