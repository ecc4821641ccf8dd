"""The tour of `muster up --demo`: its lines are words that exist, and a shell shows what they print."""

import asyncio
import os
import re
import shlex
import time
from pathlib import Path

import pytest

from muster_server.control.cli import tour
from muster_server.plane import systems
from muster_server.plane.kind import System
from tests.control.cli.test_help import muster, understood
from tests.waiting import until

LINES = [line for system in systems.named().values() for line in system.tour]


def commands(line: str) -> list[list[str]]:
    """The uses of `muster` in a line of a shell, those in `$(…)` too."""
    inner = re.findall(r"\$\(([^)]*)\)", line)
    parts = re.split(r"[;|&]|>|\bdo\b", re.sub(r"\"?\$\([^)]*\)\"?", "VALUE", line))
    found = [re.sub(r"^until ", "", part.strip()) for part in [*parts, *inner]]
    return [shlex.split(part) for part in found if part.startswith("muster ")]


def test_every_system_that_holds_something_has_a_tour() -> None:
    assert {name for name, system in systems.named().items() if system.tour} == {
        "fleet",
        "inbox",
        "likes",
        "messages",
        "presence",
    }


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_tour_is_understood(line: str) -> None:
    for words in commands(line):
        understood(muster, words)


async def test_a_tour_shows_each_line_with_its_output_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = tmp_path / "pid"
    lines = ("echo one; echo two >&2", f"sleep 600 & echo $! >{pid}", "muster version | cut -c1-2")
    toy = System(name="toy", title="Toy", about="counts", kinds=(), tour=lines)
    await tour.run(toy, dict(os.environ))
    said = capsys.readouterr().err.splitlines()
    shown = [f"  $ {line}" for line in lines]
    assert said == [shown[0], "    one", "    two", shown[1], shown[2], "    0."]
    await until(lambda: not _runs(int(pid.read_text())))


async def test_a_line_that_does_not_end_ends_the_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "LINE_S", 0.1)
    began = time.monotonic()
    await asyncio.wait_for(
        tour.run(System(name="toy", title="Toy", about="counts", kinds=(), tour=("sleep 600",)), dict(os.environ)), 60
    )
    assert time.monotonic() - began < 60


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
