"""On a terminal of 80 columns no line of a table is longer, and a pipe gets every column."""

import json
import os
import pty
import re
import signal
from typing import Final

import pytest
from rich.table import Table

from muster_server.control.terminal import common, tables
from muster_server.systems.rooms.cli import ls
from tests.control.command import Command
from tests.waiting import PATIENT_S

STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
COLOUR: Final = re.compile(r"\x1b\[(?:\d+;)*[34]\d")
RED: Final = "\x1b[31m"
WORDS: Final = ["status", "links", "cluster show", "top --once", "rooms ls", "rooms ls --verbose"]


def on_terminal(muster: Command, *words: str) -> str:
    """The output of a command on a terminal."""
    ours, theirs = pty.openpty()
    with muster.start(*words, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 1 << 16):
                said += piece
        except OSError:  # the other end is closed
            pass
        process.wait(PATIENT_S)
    return said.decode()


def test_tables_of_operators_fit_into_80_columns(muster: Command) -> None:
    with muster.up("--brokers", "1x2"):
        piped = muster("status").stdout
        muster.environment["COLUMNS"] = "80"
        shown = {words: on_terminal(muster, *words.split()) for words in WORDS}
    for words, said in shown.items():
        assert not re.search(COLOUR, said), "NO_COLOR is set"
        lines = [re.sub(STYLE, "", line) for line in said.splitlines()]
        assert lines, words
        assert [line for line in lines if len(line.rstrip()) > 80 and not line.startswith("muster: ")] == [], words
    assert "terminal of 80 columns, dropped: " in shown["status"]
    assert all(word in shown["status"] for word in ("broker-1", "ready", "restarts"))
    assert all(word in piped for word in ("epoch", "pid", "admin", "http://127.0.0.1:"))
    names = [line.split()[0] for line in re.sub(STYLE, "", shown["status"]).splitlines() if " ready " in line]
    assert names == ["broker", "broker-1", "router", "gateway", "proxy"]


def test_what_is_down_is_red_unless_no_color_is_set(muster: Command) -> None:
    muster.environment["TERM"] = "xterm"
    with muster.up("--apart"):
        pids = {node["role"]: node["pid"] for node in json.loads(muster("status", "--json").stdout)["nodes"]}
        os.kill(pids["gateway"], signal.SIGSTOP)
        try:
            del muster.environment["NO_COLOR"]
            said = on_terminal(muster, "status")
        finally:
            os.kill(pids["gateway"], signal.SIGCONT)
    said = said.partition("restarts")[2]  # the table's rows
    assert [line.split()[0] for line in said.splitlines() if RED in line] == [f"{RED}gateway\x1b[0m{RED}"]


def test_columns_are_left_out_in_their_order_and_cells_are_never_broken() -> None:
    table = Table("name", "much", "more", box=None, pad_edge=False)
    table.add_row("a name of some length", "x" * 20, "y" * 20, style="red")
    console = common.out()
    for columns, without in ((80, []), (50, ["more"]), (30, ["more", "much"]), (5, ["more", "much"])):
        made, left = tables.fitted(console, table, ("more", "none", "much"), columns)
        assert left == without
        assert [row.style for row in made.rows] == ["red"]
        assert len(made.columns) == 3 - len(without)


def test_rooms_are_listed_in_words_of_people(capsys: pytest.CaptureFixture[str]) -> None:
    room = {"name": "default:r", "members": 2, "held": 7, "held_bytes": 1_400, "flow": "live", "owner": "broker"}
    room |= {"gateways": ["gateway"], "in_force": True, "stream": [1, 2, 3], "next_offset": 8}
    for verbose in (False, True):
        tables.show(common.out(), ls._table([room], verbose), ls.LEAST)
        head, row = capsys.readouterr().out.splitlines()
        assert head.split("  ")[0] == "room"
        assert ("messages kept" in head, "in_force" in head, "next_offset" in head) == (True, verbose, verbose)
        assert row.split()[:4] == ["default:r", "2", "7", "1400"]
