"""The README can be typed: its commands and its example run as printed, against a real `muster up --demo`."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.documents import ROOT, fenced, spans
from tests.faults.instance import Instance, configuration
from tests.waiting import PATIENT_S

README: Final = (ROOT / "README.md").read_text()
COMMANDS: Final = [line.partition("#")[0].strip() for block in fenced(README) for line in block.splitlines()]
PAGES: Final = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in ROOT.glob("docs/*")),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """The instance of `make run`."""
    instance = Instance(tmp_path_factory.mktemp("readme"), configuration(demo={"members": 5}))
    with instance.running("--demo"):
        yield instance


def run(instance: Instance, command: str) -> str:
    """Run one line as a person types it, and return its output."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=instance.environment,
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_has_commands() -> None:
    assert {"make run", "make test", ".venv/bin/muster sub demo", ".venv/bin/muster status"} <= set(COMMANDS)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_a_target_of_make_is_there(command: str) -> None:
    done = subprocess.run(
        ["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ("muster up --demo" in done.stdout) == (command == "make run")


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith("make ")])
def test_a_command_runs_as_printed(demo: Instance, command: str) -> None:
    if " bench " in command:
        words = shlex.split(command.partition(">")[0])
        assert "Usage: " in run(demo, shlex.join([*words, "--help"]))
    elif " sub " in command:
        reader = subprocess.Popen(shlex.split(command), cwd=ROOT, env=demo.environment, stdout=subprocess.PIPE)
        assert reader.stdout is not None
        assert reader.stdout.read(1)
        reader.send_signal(signal.SIGINT)
        reader.communicate(timeout=PATIENT_S)
        assert reader.returncode == 0
    else:
        run(demo, command)


def test_the_example_runs_as_printed(demo: Instance) -> None:
    (example,) = fenced(README, "python")
    done = subprocess.run(
        [sys.executable, "-c", example],
        env=demo.environment,
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"sports:final (\S+:1) 1 b'goal' \1\n", done.stdout), done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_a_file_that_a_page_names_is_there(page: str) -> None:
    named = {span for span in spans((ROOT / page).read_text()) if re.fullmatch(r"[\w-]+(/[\w.-]+)+", span)}
    named = {name for name in named if "NAME" not in name.split("/")}  # a topic of MQTT, with a placeholder
    named = {span for span in named if not re.match(r"(application|text)/", span)}  # kinds of media
    places = [ROOT, ROOT / "core", ROOT / page / ".."]
    assert {
        name for name in named if not any(Path(os.path.normpath(place / name)).exists() for place in places)
    } == set()
