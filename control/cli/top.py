"""`muster top`: the activity of every node per second, as a live table or as samples.

`control/terminal/activity.py` computes the figures. A node that does not answer keeps its line, without figures.
"""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from muster_server.control.errors import TRY_LATER, UserError
from muster_server.control.terminal import common, sparks, tables
from muster_server.control.terminal.activity import Row, Sample, taken
from muster_server.control.terminal.choices import Column
from muster_server.control.terminal.found import Target, found
from muster_server.control.terminal.readings import NO_ANSWER, follow, name_silent
from muster_server.plane.kinds import partitioned

LATELY: Final = "out/s lately"
LATELY_MAX: Final = 12
"""The newest samples of a node's sparkline."""
LIMIT: Final = "limited by"
LEAST: Final = (
    LATELY,
    "most",
    "B/s in",
    "B/s out",
    "memberships",
    "repairs/s",
    "part",
    "rooms",
    "RSS",
    "late ms",
    LIMIT,
)
"""Columns of the table that a narrow terminal drops, the first of them first."""
KEYS: Final[Mapping[str, Column]] = {column.value[0]: column for column in Column}
"""Sort columns by the key that selects them: their first letter."""


async def show(where: Target, sort: Column, *, single: bool, seconds: float | None, as_json: bool) -> int:
    """Show samples until `seconds` are over, a signal or `q`; or one sample if `single`. Raises `UserError` if there
    was none."""
    live = not single and not as_json and sys.stdout.isatty()
    code: int | None = None
    with Screen(sort) if live else contextlib.nullcontext() as screen:
        async with found(where, kept=True) as nodes:
            try:
                async with asyncio.timeout(seconds):
                    async for record, before, now in follow(nodes):
                        sample = taken(record.name, record.processes, before, now)
                        if screen is not None:
                            screen.draw(sample)
                            continue
                        with common.verdict_after() if single else contextlib.nullcontext():
                            _print(sample, sort, as_json, single)
                        code = name_silent(now)
                        if single:
                            break
            except TimeoutError:
                if screen is None and code is None:
                    raise UserError(
                        f"no sample within {seconds:g} s; try again, or with a longer time", TRY_LATER
                    ) from None
    return code or 0


FIGURES: Final[Mapping[Column, Callable[[Row], float | None]]] = {
    Column.cpu: lambda row: row.cpu,
    Column.rss: lambda row: row.rss_bytes,
    Column.members: lambda row: row.members,
    Column.inbound: lambda row: row.in_per_s,
    Column.out: lambda row: row.out_per_s,
    Column.drops: lambda row: row.dropped_per_s,
    Column.lag: lambda row: row.lag_s,
}


def ordered(rows: Sequence[Row], sort: Column) -> list[Row]:
    """Sort by a figure, highest first, nodes without it last; equal rows keep their order."""
    figure = FIGURES.get(sort)
    if figure is None:
        return list(rows)
    return sorted(rows, key=lambda row: -1.0 if (value := figure(row)) is None else value, reverse=True)


# --- terminal -------------------------------------------------------------------------------------------------------


class Screen:
    """The terminal during the live table: keys arrive at once and without echo. The end restores it."""

    def __init__(self, sort: Column) -> None:
        self._sort = sort
        self._sample: Sample | None = None
        self._lately = sparks.Lately(LATELY_MAX) if sparks.drawn() else None
        self._lines: dict[int, str] | None = None
        """The sparkline of each node."""
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Screen":
        self._console = common.screen()
        with contextlib.ExitStack() as opened:
            if sys.stdin.isatty():
                opened.enter_context(_keys(sys.stdin.fileno(), self._typed))
            waiting = Text("the first sample comes in a second")
            self._live = opened.enter_context(
                Live(waiting, console=self._console, screen=True, auto_refresh=False, transient=True)
            )
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def draw(self, sample: Sample) -> None:
        """Show this sample from now on."""
        self._sample = sample
        if self._lately is not None:
            self._lines = {row.node: self._lately.add(row.node, row.out_per_s) for row in sample.nodes}
        self._redraw()

    def _redraw(self) -> None:
        if self._sample is not None:
            page = _page(self._sample, self._sort, self._console, self._lines)
            self._live.update(page, refresh=True)

    def _typed(self, key: str, task: "asyncio.Task[int]") -> None:
        if key == "q":
            task.cancel()
        elif key in KEYS:
            self._sort = KEYS[key]
            self._redraw()


@contextlib.contextmanager
def _keys(descriptor: int, typed: "Callable[[str, asyncio.Task[int]], None]") -> Iterator[None]:
    """Call `typed` for each key, with the current task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        keys = os.read(descriptor, 64).decode(errors="replace")
        for key in keys:
            typed(key, task)
        if not keys:  # the terminal was closed
            loop.remove_reader(descriptor)

    tty.setcbreak(descriptor, termios.TCSADRAIN)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _page(sample: Sample, sort: Column, console: Console, lines: Mapping[int, str] | None) -> Group:
    table, _ = tables.fitted(console, _table(sample.nodes, sort, lines), LEAST, console.width)
    table.width = tables.width(console, table)
    keys = "  ".join(f"{column.value[0]} {column.value}" for column in Column)
    return Group(_total(sample), Text(), table, Text(), Text(f"q: quit, sort by: {keys}", style="dim"))


def _total(sample: Sample) -> Text:
    total = sample.total
    words = (
        f"{total.ready} of {total.nodes} nodes ready",
        f"{total.cpu:.0%} of a core",
        f"{short(total.rss_bytes)}B",
        f"{total.members:,} members",
        f"{short(total.published_per_s)}/s published",
        f"{short(total.delivered_per_s)}/s delivered",
        f"{short(total.bytes_in_per_s)}B/s in",
        f"{short(total.bytes_out_per_s)}B/s out",
        f"{short(total.repaired_per_s)}/s repaired",
        f"{short(total.dropped_per_s)}/s dropped",
        f"{1000 * total.lag_s:.0f} ms late",
    )
    style = "bold" if total.ready == total.nodes else "bold red"
    return Text.assemble((sample.instance, style), "  ", ", ".join(words))


def _table(rows: Sequence[Row], sort: Column, lines: Mapping[int, str] | None = None) -> Table:
    """`lines`: what each node sent in the last samples, as a sparkline; None: no column shows it."""
    table = Table(box=None, pad_edge=False)
    for title in ("node", "part", "state", LIMIT):
        table.add_column(title, no_wrap=True)
    titles = {
        "CPU": Column.cpu,
        "RSS": Column.rss,
        "in/s": Column.inbound,
        "out/s": Column.out,
        "late ms": Column.lag,
        "drops/s": Column.drops,
        "most": None,
        "repairs/s": None,
        "rooms": None,
        "memberships": None,
        "members": Column.members,
        "B/s in": None,
        "B/s out": None,
    }
    for title, column in titles.items():
        style = "bold underline" if column is sort and column is not None else "bold"
        table.add_column(title, justify="left" if title == "most" else "right", no_wrap=True, header_style=style)
    if lines is not None:
        table.add_column(LATELY, justify="left", no_wrap=True, header_style="bold")
    for row in ordered(rows, sort):
        last = (row.repaired_per_s, row.rooms, row.memberships, row.members, row.bytes_in_per_s, row.bytes_out_per_s)
        table.add_row(
            row.name,
            str(row.partition) if row.role in partitioned() else "",
            row.state,
            "" if row.limit is None or row.limit.what == "nothing" else row.limit.text,
            "" if row.cpu is None else f"{row.cpu:.0%}",
            *map(short, (row.rss_bytes, row.in_per_s, row.out_per_s)),
            "" if row.lag_s is None else f"{1000 * row.lag_s:.1f}",
            short(row.dropped_per_s),
            row.dropped_most or "",
            *map(short, last),
            *([] if lines is None else [lines.get(row.node, "")]),
            style=None if row.state == "ready" else "red" if row.state == NO_ANSWER else "yellow",
        )
    return table


def short(figure: float | None) -> str:
    """Format a figure with three digits and a factor: 999, 1.02k, 3.4M."""
    if figure is None:
        return ""
    for unit in ("", "k", "M", "G"):
        if figure < 999.5:
            return f"{figure:.3g}{unit}" if unit else f"{figure:.0f}"
        figure /= 1000
    return f"{figure:.3g}T"


def _print(sample: Sample, sort: Column, as_json: bool, single: bool) -> None:
    if as_json:
        document = msgspec.structs.replace(sample, nodes=ordered(sample.nodes, sort))
        common.print_json(document, line=not single)
        return
    console = common.out()
    tables.say(console, _total(sample))
    tables.show(console, _table(sample.nodes, sort), LEAST)
