"""`muster likes partitions`: the slots, nodes and log positions of likes."""

import asyncio

from rich.table import Table

from muster_server.control.errors import FAILURE, UNAVAILABLE, UserError
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target, found
from muster_server.systems.likes.cli.commands import NONE_RUNS
from muster_server.systems.likes.partitions import partitions


async def show(where: Target, as_json: bool) -> int:
    """Print the partitions. Returns 1 if one is not served. Raises `UserError`."""
    async with found(where) as nodes:
        record = await nodes.record()
    read = await asyncio.to_thread(partitions, record.processes)
    if not read.nodes:
        raise UserError(NONE_RUNS, UNAVAILABLE)
    with common.verdict_after():
        if as_json:
            common.print_json(read)
        else:
            table = Table(box=None, pad_edge=False)
            for column in ("partition", "slots", "node"):
                table.add_column(column)
            for column in ("items", "likes", "log position", "not in the database"):
                table.add_column(column, justify="right")
            for row in read.partitions:
                figures = (row.items, row.likes, row.offset, row.not_written_behind)
                slots = f"{row.first_slot}-{row.last_slot}"
                node = row.node or "no node answers"
                table.add_row(str(row.partition), slots, node, *(f"{each:,}" for each in figures))
            common.out().print(table)
    return 0 if all(row.node for row in read.partitions) else FAILURE
