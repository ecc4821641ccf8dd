"""The README and the tutorial can be pasted: their lines and programs run as printed, against a real `muster up`."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bench.table import HEAD
from muster_server.systems.rooms.cli.demo import COLUMNS
from tests.control.cli.test_help import muster, understood
from tests.documents import ROOT, cells, fenced, spans
from tests.faults.instance import Instance, configuration
from tests.shell import Shell

README: Final = (ROOT / "README.md").read_text()
TUTORIAL: Final = (ROOT / "docs" / "tutorial.md").read_text()
BENCHMARKS: Final = (ROOT / "docs" / "benchmarks.md").read_text()
TARGETS: Final = [line.partition("#")[0].strip() for block in fenced(README) for line in block.splitlines()]
PAGES: Final = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in ROOT.glob("docs/*.md")),
]

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """The instance of `make run` with every system."""
    instance = Instance(tmp_path_factory.mktemp("readme"), configuration(demo={"members": 5}))
    with instance.running("--demo", "--with", "all"):
        yield instance


def python(instance: Instance, program: str) -> str:
    """Run a program of a page, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=instance.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def until_online(shell: Shell, user: int) -> None:
    """Wait until presence has heard of a session that is open already."""
    while f"{user}: online" not in shell.paste(f"muster presence who {user}"):
        pass


def test_the_readme_has_the_two_commands() -> None:
    assert TARGETS == ["make run", "make test"]


@pytest.mark.parametrize("command", TARGETS)
def test_a_target_of_make_is_there(command: str) -> None:
    done = subprocess.run(
        ["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ("scripts/run.sh" in done.stdout) == command.startswith("make run")


def test_the_readme_shows_the_columns_that_the_demo_prints() -> None:
    (shown,) = fenced(README, "text")
    assert shown.splitlines()[0].split() == list(COLUMNS)


def test_the_lines_of_the_readme_run_as_pasted(demo: Instance) -> None:
    setup, presence, inbox, likes, delayed, fleet = fenced(README, "sh")
    with Shell(demo.environment) as shell:
        shell.paste(setup)
        shell.wait("joined lobby")
        shell.wait("200 clients at mqtt://")
        until_online(shell, 7)
        said = shell.paste(presence)
        assert "7: online: phone at gateway" in said
        assert "delivered: phone" in said
        assert "Bo likes your song" in shell.paste(inbox)
        said = shell.paste(likes)
        assert "share:1000: 2017 likes it; 1 like" in said
        assert re.search(r"^0 +share:1000 +1\b", said, re.MULTILINE)
        assert re.search(r"^topic +reminders$", shell.paste(delayed), re.MULTILINE)
        shell.wait("half time")
        said = shell.paste(fleet)
        assert "100 of 100 results from 100 clients" in said
        assert "picked 0 to 1 times" in said


def test_the_program_of_the_readme_runs_as_printed(demo: Instance) -> None:
    (example,) = fenced(README, "python")
    said = python(demo, example)
    assert re.fullmatch(r"sports:final (\S+:1) 1 b'goal' \1\n", said), said


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    rows = list(cells(README, "figure", "Muster", "beside"))
    assert len(rows) == 4
    figures = {cell for row in cells(BENCHMARKS, *HEAD) for cell in row}
    for _, own, beside in rows:
        for figure in re.findall(r"\d+(?:[.,]\d+)*M?", f"{own} {beside}"):
            assert figure in figures or f"<= {figure}" in figures, figure


def test_a_command_of_the_benchmarks_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for block in fenced(BENCHMARKS) for line in block.splitlines()]
    assert len(lines) == 9
    monkeypatch.chdir(ROOT)
    for line in lines:
        words = shlex.split(line.partition(" > ")[0].removeprefix(".venv/bin/"))
        files = [str(path) for word in words if "*" in word for path in Path().glob(word)]
        understood(muster, [word for word in words if "*" not in word] + files)


def test_the_tutorial_runs_as_pasted(demo: Instance) -> None:
    (start,) = fenced(TUTORIAL)
    understood(muster, shlex.split(start.removeprefix(".venv/bin/")))
    (program,) = fenced(TUTORIAL, "python")
    status, reader, publishers, presence, likes, reminder, around = fenced(TUTORIAL, "sh")
    with Shell(demo.environment) as shell:
        assert "broker" in shell.paste(status)
        shell.paste(reader)
        shell.wait("joined chat:lobby")
        shell.paste(publishers)
        shell.wait("hello, Ann")
        shell.wait("number 3 at")
        said = python(demo, program)
        assert said.startswith("1 hello, Ann\n1 number 1 at ")
        assert said.endswith("\n1 hello from Python\n")
        until_online(shell, 7)
        said = shell.paste(presence)
        assert "7: online: laptop at gateway" in said
        assert "8: not online" in said
        shell.wait("only for you")
        said = shell.paste(likes)
        assert re.search(r"^0 +message:1 +2\b.*\n1 +message:2 +1\b", said, re.MULTILINE), said
        assert re.search(r"^topic +games$", shell.paste(reminder), re.MULTILINE)
        shell.wait("the game begins")
        assert "chat:lobby" in shell.paste(around)


@pytest.mark.parametrize("page", PAGES)
def test_a_file_that_a_page_names_is_there(page: str) -> None:
    named = {span for span in spans((ROOT / page).read_text()) if re.fullmatch(r"[\w-]+(/[\w.-]+)+", span)}
    named = {name for name in named if "NAME" not in name.split("/")}  # a topic of MQTT, with a placeholder
    named = {span for span in named if not re.match(r"(application|text)/", span)}  # kinds of media
    places = [ROOT, ROOT / "core", ROOT / page / ".."]
    assert {
        name for name in named if not any(Path(os.path.normpath(place / name)).exists() for place in places)
    } == set()
