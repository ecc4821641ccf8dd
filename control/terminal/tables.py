"""Tables for people. On a narrow terminal less important columns are dropped, and a line lists them.

Imports `rich`, so only commands that show tables import this file.
"""

import shutil
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster_server.control.terminal import common


def show(console: Console, table: Table, least: Sequence[str]) -> None:
    """Print a table. `least`: columns that a narrow terminal drops, the first of them first."""
    if not sys.stdout.isatty():
        console.print(table)
        return
    columns = shutil.get_terminal_size().columns
    made, without = fitted(console, table, least, columns)
    console.print(made, soft_wrap=False, width=columns)
    if without:
        say(console, Text(f"terminal of {columns} columns, dropped: {', '.join(without)}; --json has all", style="dim"))


def say(console: Console, text: Text) -> None:
    """Print text below a table; lines break between words."""
    if sys.stdout.isatty():
        console.print(text, soft_wrap=False, width=shutil.get_terminal_size().columns)
    else:
        console.print(text)


def fitted(console: Console, table: Table, least: Sequence[str], columns: int) -> tuple[Table, list[str]]:
    """A table of at most `columns` columns of text, and the titles of dropped columns. Cells are cut if all of `least`
    is dropped."""
    left = list(least)
    made, without = _without(table, ()), list[str]()
    while left and width(console, made) > columns:
        title = left.pop(0)
        if any(str(column.header) == title for column in table.columns):
            without.append(title)
            made = _without(table, without)
    return made, without


def width(console: Console, table: Table) -> int:
    """The columns of text that a table takes."""
    return table.__rich_measure__(console, console.options.update(max_width=common.WIDTH)).maximum


def _without(table: Table, titles: Sequence[str]) -> Table:
    """The same table without some columns; no cell of it is wrapped."""
    made = Table(box=None, pad_edge=False, title=table.title, title_justify=table.title_justify)
    kept = [column for column in table.columns if str(column.header) not in titles]
    for column in kept:
        made.add_column(
            column.header,
            justify=column.justify,
            style=column.style,
            header_style=column.header_style,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row, cells in zip(table.rows, zip(*(column.cells for column in kept), strict=True), strict=True):
        made.add_row(*cells, style=row.style)
    return made
