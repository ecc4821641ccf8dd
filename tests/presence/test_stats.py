"""The table of `muster presence stats`."""

import msgspec
from rich.console import Console

from muster_server.control.terminal.sparks import BLOCKS, LATELY_MAX, Lately
from muster_server.systems.presence.cli.commands import table
from muster_server.systems.presence.questions import CopyStats, ShardStats, WriterStats

WRITER = WriterStats(1, 1, 0, 1, 1, "", 3, [], 0, 0, 0, 0, 0, 0)


def shown(online: int | None, past: Lately | None) -> str:
    writer = None if online is None else msgspec.structs.replace(WRITER, online=online)
    console = Console(width=200)
    with console.capture() as said:
        console.print(table([ShardStats(1, 1, 0, "", 0, writer, 3)], past))
    return said.get()


def test_a_watch_draws_the_devices_of_earlier_tables() -> None:
    past = Lately()
    for online in (0, 7, 7):
        last = shown(online, past)
    assert "devices lately" in last
    assert "▁██" in last
    assert "▁██" in shown(None, past), "a shard without a report keeps its line"
    for online in range(2 * LATELY_MAX):
        last = shown(online, past)
    assert sum(last.count(block) for block in BLOCKS) == LATELY_MAX


def test_one_table_alone_has_no_line() -> None:
    assert "lately" not in shown(3, None)


def test_a_shard_that_is_answered_from_a_copy_says_so() -> None:
    console = Console(width=200)
    for why, wanted in (("", "serves from a copy"), ("the store went back", "serves")):
        with console.capture() as said:
            console.print(table([ShardStats(1, 1, 0, "", 0, WRITER, 3, CopyStats(why, 3, 100, 1))]))
        assert said.get().rstrip().endswith(wanted)
